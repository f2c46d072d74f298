package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertBitEqual;
import static io.djltp.testing.ArrayAssert.assertClose;
import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.labels;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertNotEquals;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.translate.NoopTranslator;

import io.djltp.layout.ParallelMode;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;

/** The statistics of rank 0 are those of all: what is evaluated is what is saved. */
public class BatchNormTest {

    private static final int ROWS = 13;
    private static final int FEATURES = 6;
    private static final int CLASSES = 7;

    // fp32: the parts of the batch are multiplied in another order than the whole
    private static final double TOLERANCE = 1e-6;

    private Path folder;

    @BeforeMethod
    public void createFolder() throws IOException {
        folder = Files.createTempDirectory("batch-norm");
    }

    @AfterMethod
    public void deleteFolder() throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            for (Path file : files.toList()) {
                Files.delete(file);
            }
        }
        Files.delete(folder);
    }

    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void whatIsEvaluatedIsWhatIsSaved(TrainerKind kind) throws Exception {
        try (Model model = model();
                NDManager manager = NDManager.newBaseManager()) {
            NDList data = new NDList(random(manager, 99, ROWS, FEATURES));
            float[] open;
            float[] passed;
            try (Trainer trainer = open(kind, model)) {
                trainer.evaluate(data); // before the first step
                for (int i = 0; i < 3; i++) {
                    step(trainer, manager, i);
                    trainer.evaluate(data); // which changes nothing
                }
                step(trainer, manager, 4);
                open = values(trainer.evaluate(data));
                model.save(folder, "open");
                // statistics of a pass without a step count too
                trainer.forward(data);
                passed = values(trainer.evaluate(data));
            }
            model.save(folder, "closed");
            assertClose(open, predict("open", data), TOLERANCE, "saved while open");
            assertClose(passed, predict("closed", data), TOLERANCE, "closed");
            assertNotEquals(passed, open);
        }
    }

    /** Whether there are evaluations in between makes no difference to the training. */
    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void evaluatingChangesNothing(TrainerKind kind) {
        float[][] statistics = new float[2][];
        for (int run = 0; run < 2; run++) {
            try (Model model = model();
                    NDManager manager = NDManager.newBaseManager()) {
                try (Trainer trainer = open(kind, model)) {
                    for (int i = 0; i < 4; i++) {
                        step(trainer, manager, i);
                        if (run == 1) {
                            NDArray data = random(manager, 50 + i, ROWS, FEATURES);
                            trainer.evaluate(new NDList(data));
                        }
                    }
                }
                statistics[run] = statistics(model);
            }
        }
        assertBitEqual(statistics[1], statistics[0], kind.toString());
    }

    /** In TENSOR mode all ranks see the whole batch, as DJL's trainer does. */
    @Test(timeOut = 60_000)
    public void tensorModeIsDjl() {
        float[][] statistics = new float[2][];
        for (int run = 0; run < 2; run++) {
            TrainerKind kind = run == 0 ? PLAIN : TENSOR_3;
            try (Model model = model();
                    NDManager manager = NDManager.newBaseManager()) {
                try (Trainer trainer = open(kind, model)) {
                    for (int i = 0; i < 4; i++) {
                        step(trainer, manager, i);
                    }
                }
                statistics[run] = statistics(model);
            }
        }
        assertClose(statistics[1], statistics[0], 5e-6, "statistics");
    }

    @DataProvider
    public Object[][] cutRows() {
        return TrainerKind.rows(DATA_2, MIXED_2, MESH_2X2);
    }

    /** As the last batch of an epoch: nobody has begun, and the training can go on. */
    @Test(dataProvider = "cutRows", timeOut = 60_000)
    public void oneRowOfARankIsRefused(TrainerKind kind) {
        try (Model model = model();
                NDManager manager = NDManager.newBaseManager();
                Trainer trainer = open(kind, model)) {
            step(trainer, manager, 0);
            for (int rows = 1; rows < 4; rows++) {
                NDList few = new NDList(random(manager, 1, rows, FEATURES));
                IllegalArgumentException e =
                        expectThrows(IllegalArgumentException.class, () -> trainer.forward(few));
                String text = e.getMessage();
                for (String part : List.of("02BatchNorm", rows + " row", "setSampling")) {
                    assertTrue(text.contains(part), part + " in: " + text);
                }
                for (String part : List.of("SyncBatchNorm", "TENSOR mode")) {
                    // which one row in all does not help
                    assertEquals(text.contains(part), rows > 1, part + " in: " + text);
                }
                trainer.evaluate(few); // with the running statistics
            }
            NDList four = new NDList(random(manager, 1, 4, FEATURES));
            trainer.forward(four);
            step(trainer, manager, 1);
        }
    }

    /** There the whole batch has one row: nobody else's statistics help. */
    @Test(timeOut = 60_000)
    public void oneRowInTensorModeIsRefused() {
        try (Model model = model();
                NDManager manager = NDManager.newBaseManager();
                Trainer trainer = open(TENSOR_2, model)) {
            NDList one = new NDList(random(manager, 1, 1, FEATURES));
            String text =
                    throwsArgument(
                            () -> trainer.forward(one),
                            "of the rows of the batch, 1",
                            "leave an incomplete last batch out");
            assertFalse(text.contains("SyncBatchNorm"), text);
            assertFalse(text.contains("TENSOR"), text);
        }
    }

    /** Behind the layer that gathers the batch there are all rows; pixels are values too. */
    @Test(timeOut = 60_000)
    public void moreThanOneValueIsNotRefused() {
        Block pixels = Blocks.sequence(Blocks.reshape(-1, 2, 3), BatchNorm.builder().build());
        Block gathered = Blocks.sequence(gathered(5), BatchNorm.builder().build());
        try (NDManager manager = NDManager.newBaseManager()) {
            NDList few = new NDList(random(manager, 1, 3, FEATURES));
            for (Block block : List.of(pixels, gathered)) {
                try (Model model = Model.newInstance("net", Device.cpu())) {
                    model.setBlock(block);
                    boolean mixed = block == gathered;
                    ParallelMode mode = mixed ? ParallelMode.MIXED : ParallelMode.DATA;
                    try (Trainer trainer = open(new TrainerKind(mode, 2), model)) {
                        trainer.forward(few);
                    }
                }
            }
        }
    }

    /** A block of which it is not known what it gives the normalization: libtorch has refused. */
    @Test(timeOut = 60_000)
    public void oneValueThatIsSeenLateIsExplained() {
        try (Model model = Model.newInstance("net", Device.cpu());
                NDManager manager = NDManager.newBaseManager()) {
            Block norm = BatchNorm.builder().build();
            model.setBlock(
                    new GraphBlock(
                                    new Shape(FEATURES),
                                    (call, input) -> new NDList(call.call("norm", input.head())))
                            .add("norm", norm, FEATURES, 2)); // of two values
            try (Trainer trainer = open(DATA_2, model)) {
                NDList one = new NDList(random(manager, 1, 2, FEATURES));
                expect(RuntimeException.class, () -> trainer.forward(one), "SyncBatchNorm");
            }
        }
    }

    private static float[] statistics(Model model) {
        for (var named : model.getBlock().getParameters()) {
            if (named.getValue().getType() == Parameter.Type.RUNNING_MEAN) {
                return named.getValue().getArray().toFloatArray();
            }
        }
        throw new AssertionError("no batch normalization");
    }

    /** One warning with all names: a network of DJL's zoo has dozens. */
    @Test(timeOut = 60_000)
    public void oneWarningNamesAll() {
        PrintStream before = System.err;
        ByteArrayOutputStream logged = new ByteArrayOutputStream();
        System.setErr(new PrintStream(logged, true, StandardCharsets.UTF_8));
        try (Model model = model()) {
            ((SequentialBlock) model.getBlock()).add(BatchNorm.builder().build());
            open(DATA_2, model).close();
        } finally {
            System.setErr(before);
        }
        String text = logged.toString(StandardCharsets.UTF_8);
        assertTrue(text.contains("02BatchNorm, 04BatchNorm: where the batch is cut"), text);
        assertEquals(text.split("statistics of all rows", -1).length, 2, text);
    }

    private static void step(Trainer trainer, NDManager manager, int seed) {
        backward(
                trainer,
                random(manager, seed, ROWS, FEATURES),
                labels(manager, seed, ROWS, CLASSES));
        trainer.step();
    }

    private static Block block() {
        return sequence(linear(8), BatchNorm.builder().build(), gathered(CLASSES));
    }

    private static Model model() {
        Engine.getInstance().setRandomSeed(2);
        Model model = Model.newInstance("net", Device.cpu());
        model.setBlock(block());
        return model;
    }

    private static Trainer open(TrainerKind kind, Model model) {
        Trainer trainer =
                kind.open(model, Configs.of(Loss.softmaxCrossEntropyLoss(), Configs.sgd(0.1f)));
        trainer.initialize(new Shape(ROWS, FEATURES));
        return trainer;
    }

    private float[] predict(String name, NDList data) throws Exception {
        try (Model model = Model.newInstance("net", Device.cpu())) {
            model.setBlock(block());
            model.load(folder, name);
            try (Predictor<NDList, NDList> predictor = model.newPredictor(new NoopTranslator())) {
                return values(predictor.predict(data));
            }
        }
    }

    private static float[] values(NDList output) {
        return output.singletonOrThrow().toFloatArray();
    }
}
