package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllClose;
import static io.djltp.testing.ArrayAssert.assertBitEqual;
import static io.djltp.testing.ArrayAssert.assertClose;
import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainingRun.steps;
import static io.djltp.testing.TrainingRun.weights;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.expectThrows;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.listener.SaveModelTrainingListener;
import ai.djl.training.loss.Loss;
import ai.djl.translate.NoopTranslator;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.RowParallelLinear;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.Configs;
import io.djltp.testing.CutNetwork;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;

/**
 * What a parallel trainer saves is a plain DJL model, whenever it is saved, and it can go on with
 * what DJL's trainer has saved.
 */
public class SaveAndLoadTest extends TestFolder {

    private static final Network.Batches BATCHES = Network.batches("7x6", "7:9");

    // fp32: a few steps with sums in another order
    private static final double TOLERANCE = 5e-6;

    private static Block plain() {
        return sequence(linear(8), tanh(), linear(10), relu(), linear(5, false), linear(9));
    }

    private static Block parallel() {
        RowParallelLinear row = RowParallelLinear.builder().setUnits(5).optBias(false).build();
        return sequence(linear(8), tanh(), head(10), relu(), row, column(9));
    }

    private static DefaultTrainingConfig config(TrainerKind kind) {
        Loss loss =
                kind.isParallel()
                        ? new VocabParallelCrossEntropyLoss()
                        : Loss.softmaxCrossEntropyLoss();
        return Configs.of(loss, Configs.sgd(0.2f));
    }

    private static Model model(Block block) {
        Engine.getInstance().setRandomSeed(8);
        Model model = Model.newInstance("net");
        model.setBlock(block);
        return model;
    }

    private Model loaded(Block block, String name) throws Exception {
        Model model = model(block);
        model.load(folder, name);
        return model;
    }

    private static void train(TrainerKind kind, Model model, int from, int to) {
        try (Trainer trainer = kind.open(model, config(kind), BATCHES.shapes())) {
            steps(trainer, new ArrayList<>(), BATCHES, from, to);
        }
    }

    private static float[] predict(Model model) throws Exception {
        try (Predictor<NDList, NDList> predictor = model.newPredictor(new NoopTranslator());
                NDManager manager = NDManager.newBaseManager()) {
            return predictor.predict(BATCHES.make(manager, 99)[0]).head().toFloatArray();
        }
    }

    private float[] predict(Block block, String name) throws Exception {
        try (Model model = loaded(block, name)) {
            return predict(model);
        }
    }

    /** Saved between steps, after closing the trainer, and by DJL's listener: plain DJL. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void whatIsSavedIsAPlainModel(TrainerKind kind) throws Exception {
        float[] ofTwo;
        float[] ofFour;
        try (Model model = model(plain())) {
            train(PLAIN, model, 0, 2);
            ofTwo = predict(model);
            train(PLAIN, model, 2, 4);
            ofFour = predict(model);
        }
        try (Model model = model(parallel())) {
            DefaultTrainingConfig config = config(kind);
            config.addTrainingListeners(
                    new SaveModelTrainingListener(folder.toString(), "listener"));
            try (Trainer trainer = kind.open(model, config, BATCHES.shapes())) {
                steps(trainer, new ArrayList<>(), BATCHES, 0, 2);
                model.save(folder, "open");
                steps(trainer, new ArrayList<>(), BATCHES, 2, 4);
            }
            model.save(folder, "closed");
            assertClose(predict(model), ofFour, TOLERANCE, "the model itself");
        }
        assertClose(predict(plain(), "open"), ofTwo, TOLERANCE, "saved while open");
        float[] closed = predict(plain(), "closed");
        assertClose(closed, ofFour, TOLERANCE, "saved after closing");
        assertBitEqual(predict(plain(), "listener"), closed, "saved by the listener");
        // the same file in the same block, outside of ranks
        assertBitEqual(predict(parallel(), "closed"), closed, "unsharded");
    }

    /** Saving does not disturb the training that goes on. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void savingChangesNothing(TrainerKind kind) {
        List<TrainingRun> runs = new ArrayList<>();
        for (boolean saves : new boolean[] {true, false}) {
            runs.add(
                    TrainingRun.of(
                            kind,
                            parallel(),
                            config(kind),
                            BATCHES.shapes(),
                            (trainer, manager, losses) -> {
                                for (int i = 0; i < 3; i++) {
                                    steps(trainer, losses, BATCHES, i, i + 1);
                                    if (saves) {
                                        trainer.getModel().save(folder, "step");
                                    }
                                }
                            }));
        }
        runs.get(0).assertBitEqual(runs.get(1));
    }

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void goingOnWithAPlainModel(TrainerKind kind) throws Exception {
        try (Model model = model(plain())) {
            train(PLAIN, model, 0, 3);
            model.save(folder, "net");
        }
        try (Model expected = loaded(plain(), "net");
                Model actual = loaded(parallel(), "net")) {
            train(PLAIN, expected, 3, 6);
            train(kind, actual, 3, 6);
            assertSame(actual, expected);
        }
    }

    private static void assertSame(Model actual, Model expected) {
        List<float[]> weights = weights(expected.getBlock());
        assertAllClose(weights(actual.getBlock()), weights, TOLERANCE, "parameter");
    }

    /** One model, trained by one trainer after another, of any mode and size. */
    @Test(timeOut = 60_000)
    public void oneTrainerAfterAnother() {
        List<TrainerKind> kinds = TrainerKind.all(1, 2, 3, 4);
        try (Model expected = model(plain())) {
            for (int step = 0; step < kinds.size(); step++) {
                train(PLAIN, expected, step, step + 1);
            }
            try (Model actual = model(parallel())) {
                for (int step = 0; step < kinds.size(); step++) {
                    train(kinds.get(step), actual, step, step + 1);
                }
                assertSame(actual, expected);
            }
        }
    }

    @DataProvider
    public Object[][] cuts() {
        return TrainerKind.rows(List.of(CutNetwork.values()), List.of(2, 3));
    }

    /** Of layers cut in other ways, too: saved while they are trained, and the other way round. */
    @Test(dataProvider = "cuts", timeOut = 60_000)
    public void ofChosenCuts(CutNetwork network, int ranks) throws Exception {
        TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, ranks);
        Network.Batches batches = Network.batches("6x7", "6x5");
        DefaultTrainingConfig config = Configs.of(new HalfSquareLoss(), Configs.sgd(0.1f));
        float[] expected;
        try (Model model = model(network.create(0));
                Trainer trainer = PLAIN.open(model, config, batches.shapes())) {
            steps(trainer, new ArrayList<>(), batches, 0, 2);
            model.save(folder, "plain");
            steps(trainer, new ArrayList<>(), batches, 2, 4);
            expected = predictCut(model, batches);
        }
        try (Model cut = loaded(network.create(ranks), "plain")) {
            try (Trainer trainer = kind.open(cut, config, batches.shapes())) {
                steps(trainer, new ArrayList<>(), batches, 2, 4);
                cut.save(folder, "open");
            }
            assertClose(predictCut(cut, batches), expected, TOLERANCE, "in the model");
        }
        try (Model model = loaded(network.create(0), "open")) {
            assertClose(predictCut(model, batches), expected, TOLERANCE, "in the file");
        }
    }

    private static float[] predictCut(Model model, Network.Batches batches) throws Exception {
        try (Predictor<NDList, NDList> predictor = model.newPredictor(new NoopTranslator());
                NDManager manager = NDManager.newBaseManager()) {
            return predictor.predict(batches.make(manager, 99)[0]).head().toFloatArray();
        }
    }

    /** What the system says of a full disk names no file. */
    @Test(timeOut = 60_000)
    public void aFullDiskIsNamed() {
        SequentialBlock full =
                new SequentialBlock() {
                    @Override
                    public void saveParameters(DataOutputStream os) throws IOException {
                        throw new IOException("No space left on device");
                    }
                };
        TrainingRun.of(
                TENSOR_2,
                full.add(gathered(4)),
                config(TENSOR_2),
                BATCHES.shapes(),
                (trainer, manager, losses) -> {
                    IOException e =
                            expectThrows(
                                    IOException.class,
                                    () -> ((ParallelTrainer) trainer).save(folder, "net"));
                    String expected = "Cannot write to " + folder + ": No space left on device";
                    assertEquals(e.getMessage(), expected);
                });
    }

    /** Any name that can be one of a file can be one of a model. */
    @Test(timeOut = 60_000)
    public void namesOfFilesOnly() throws IOException {
        try (Model model = model(linear(2))) {
            model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, new Shape(1, 3));
            for (String name : List.of("a/b", "a/", "/a")) {
                throwsArgument(
                        () -> TrainedModel.AtomicSave.save(model, folder, name),
                        "\"" + name + "\" leads");
                assertEquals(names(), List.of());
            }
            TrainedModel.AtomicSave.save(model, folder, "ü ? $(x) #1");
            TrainedModel.AtomicSave.save(model, folder, "");
            assertEquals(names(), List.of("net-0000.params", "ü ? $(x) #1-0000.params"));
        }
    }

    private List<String> names() throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            return files.map(each -> each.getFileName().toString()).sorted().toList();
        }
    }
}
