package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllBitEqual;
import static io.djltp.testing.ArrayAssert.assertAllClose;
import static io.djltp.testing.ArrayAssert.assertBitEqual;
import static io.djltp.testing.ArrayAssert.assertClose;
import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.labels;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.weights;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.expectThrows;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.listener.SaveModelTrainingListener;
import ai.djl.training.loss.Loss;
import ai.djl.translate.NoopTranslator;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Stream;

/**
 * What a parallel trainer saves is a plain DJL model, whenever it is saved, and it can go on with
 * what DJL's trainer has saved.
 */
public class SaveAndLoadTest {

    private static final int ROWS = 7;
    private static final int FEATURES = 6;
    private static final int CLASSES = 9;

    // fp32: a few steps with sums in another order
    private static final double TOLERANCE = 5e-6;

    private Path folder;

    @BeforeMethod
    public void createFolder() throws IOException {
        folder = Files.createTempDirectory("save-and-load");
    }

    @AfterMethod
    public void deleteFolder() throws IOException {
        try (Stream<Path> files = Files.walk(folder)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        }
    }

    /** Saved between steps, after closing the trainer, and by DJL's listener: plain DJL. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void whatIsSavedIsAPlainModel(TrainerKind kind) throws Exception {
        Engine.getInstance().setRandomSeed(8);
        try (Model model = Model.newInstance("net")) {
            model.setBlock(parallel());
            DefaultTrainingConfig config =
                    config(new VocabParallelCrossEntropyLoss())
                            .addTrainingListeners(
                                    new SaveModelTrainingListener(folder.toString(), "listener"));
            try (Trainer trainer = kind.open(model, config, new Shape(ROWS, FEATURES))) {
                steps(trainer, 0, 2);
                model.save(folder, "open");
                steps(trainer, 2, 4);
            }
            model.save(folder, "closed");
            assertClose(predict(model), plainPredictions(4), TOLERANCE, "the model itself");
        }
        assertClose(predict(plain(), "open"), plainPredictions(2), TOLERANCE, "saved while open");
        float[] closed = predict(plain(), "closed");
        assertClose(closed, plainPredictions(4), TOLERANCE, "saved after closing");
        assertBitEqual(predict(plain(), "listener"), closed, "saved by the listener");
        // the same file in the same block, outside of ranks
        assertBitEqual(predict(parallel(), "closed"), closed, "unsharded");
    }

    /** Returns the predictions of a plain model after some steps of DJL's trainer. */
    private static float[] plainPredictions(int steps) throws Exception {
        Engine.getInstance().setRandomSeed(8);
        try (Model model = Model.newInstance("net")) {
            model.setBlock(plain());
            train(PLAIN, model, Loss.softmaxCrossEntropyLoss(), 0, steps);
            return predict(model);
        }
    }

    /** Saving does not disturb the training that goes on. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void savingChangesNothing(TrainerKind kind) throws Exception {
        List<float[]> with = trainAndSave(kind, true);
        List<float[]> without = trainAndSave(kind, false);
        assertAllBitEqual(with, without, "parameter");
    }

    private List<float[]> trainAndSave(TrainerKind kind, boolean save) throws IOException {
        Engine.getInstance().setRandomSeed(8);
        try (Model model = Model.newInstance("net")) {
            model.setBlock(parallel());
            try (Trainer trainer =
                    kind.open(
                            model,
                            config(new VocabParallelCrossEntropyLoss()),
                            new Shape(ROWS, FEATURES))) {
                for (int i = 0; i < 3; i++) {
                    steps(trainer, i, i + 1);
                    if (save) {
                        model.save(folder, "step");
                    }
                }
            }
            return weights(model.getBlock());
        }
    }

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void goingOnWithAPlainModel(TrainerKind kind) throws Exception {
        Engine.getInstance().setRandomSeed(9);
        try (Model model = Model.newInstance("net")) {
            model.setBlock(plain());
            train(PLAIN, model, Loss.softmaxCrossEntropyLoss(), 0, 3);
            model.save(folder, "net");
        }
        List<float[]> expected;
        List<float[]> actual;
        try (Model model = loaded(plain(), "net")) {
            train(PLAIN, model, Loss.softmaxCrossEntropyLoss(), 3, 6);
            expected = weights(model.getBlock());
        }
        try (Model model = loaded(parallel(), "net")) {
            train(kind, model, new VocabParallelCrossEntropyLoss(), 3, 6);
            actual = weights(model.getBlock());
        }
        assertAllClose(actual, expected, TOLERANCE, "parameter");
    }

    /** One model, trained by one trainer after another, of any mode and size. */
    @Test(timeOut = 60_000)
    public void oneTrainerAfterAnother() throws Exception {
        Engine.getInstance().setRandomSeed(10);
        List<float[]> expected;
        try (Model model = Model.newInstance("net")) {
            model.setBlock(plain());
            int step = 0;
            for (int i = 0; i < TrainerKind.parallel().length; i++) {
                train(PLAIN, model, Loss.softmaxCrossEntropyLoss(), step, ++step);
            }
            expected = weights(model.getBlock());
        }
        Engine.getInstance().setRandomSeed(10);
        try (Model model = Model.newInstance("net")) {
            model.setBlock(parallel());
            int step = 0;
            for (Object[] kind : TrainerKind.parallel()) {
                train(
                        (TrainerKind) kind[0],
                        model,
                        new VocabParallelCrossEntropyLoss(),
                        step,
                        ++step);
            }
            List<float[]> actual = weights(model.getBlock());
            assertAllClose(actual, expected, TOLERANCE, "parameter");
        }
    }

    private static void train(TrainerKind kind, Model model, Loss loss, int from, int to) {
        try (Trainer trainer = kind.open(model, config(loss), new Shape(ROWS, FEATURES))) {
            steps(trainer, from, to);
        }
    }

    private static void steps(Trainer trainer, int from, int to) {
        try (NDManager manager = NDManager.newBaseManager()) {
            for (int i = from; i < to; i++) {
                NDArray data = random(manager, i, ROWS, FEATURES);
                backward(trainer, data, labels(manager, i, ROWS, CLASSES));
                trainer.step();
            }
        }
    }

    private static float[] predict(Model model) throws Exception {
        try (Predictor<NDList, NDList> predictor = model.newPredictor(new NoopTranslator());
                NDManager manager = NDManager.newBaseManager()) {
            NDArray data = random(manager, 99, ROWS, FEATURES);
            return predictor.predict(new NDList(data)).singletonOrThrow().toFloatArray();
        }
    }

    private float[] predict(Block block, String name) throws Exception {
        try (Model model = loaded(block, name)) {
            return predict(model);
        }
    }

    private Model loaded(Block block, String name) throws Exception {
        Model model = Model.newInstance("net");
        model.setBlock(block);
        model.load(folder, name);
        return model;
    }

    private static DefaultTrainingConfig config(Loss loss) {
        return Configs.of(loss, Configs.sgd(0.2f));
    }

    private static Block plain() {
        return sequence(linear(8), tanh(), linear(10), relu(), linear(5, false), linear(CLASSES));
    }

    private static Block parallel() {
        return sequence(
                linear(8),
                tanh(),
                head(10),
                relu(),
                RowParallelLinear.builder().setUnits(5).optBias(false).build(),
                column(CLASSES));
    }

    /** What the system says of a full disk names no file. */
    @Test(timeOut = 60_000)
    public void aFullDiskIsNamed() {
        try (Model model = Model.newInstance("net")) {
            model.setBlock(
                    new SequentialBlock() {
                        @Override
                        public void saveParameters(DataOutputStream os) throws IOException {
                            throw new IOException("No space left on device");
                        }
                    }.add(
                            ColumnParallelLinear.builder()
                                    .setUnits(4)
                                    .optGatherOutput(true)
                                    .build()));
            try (Trainer trainer =
                    ((TrainerKind) TrainerKind.parallel(2)[0][0])
                            .open(model, config(new VocabParallelCrossEntropyLoss()))) {
                trainer.initialize(new Shape(ROWS, FEATURES));
                IOException e =
                        expectThrows(
                                IOException.class,
                                () -> ((ParallelTrainer) trainer).save(folder, "net"));
                assertEquals(
                        e.getMessage(), "Cannot write to " + folder + ": No space left on device");
            }
        }
    }
}
