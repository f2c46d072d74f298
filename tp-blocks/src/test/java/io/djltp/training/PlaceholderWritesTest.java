package io.djltp.training;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;

import io.djltp.layout.ParallelMode;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.torch.Autograd;

import org.testng.Assert;
import org.testng.Assert.ThrowingRunnable;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.function.Consumer;

/**
 * Of a parameter that is cut the model holds a placeholder while its trainer is open. Values that
 * are written into it come to no rank: whatever is done next refuses them, and discards them.
 */
public class PlaceholderWritesTest {

    private static final Shape INPUT = new Shape(6, 4);
    private static final Shape CUT = new Shape(7, 5); // of the weight that is written to
    private static final List<Consumer<NDArray>> WRITES =
            List.of(
                    PlaceholderWritesTest::setAll,
                    array -> array.getManager().ones(CUT).copyTo(array),
                    array -> array.get(1).set(new float[(int) CUT.get(1)]),
                    array -> array.addi(1f),
                    array -> array.muli(array.getManager().ones(CUT)),
                    array -> array.set(new NDIndex("0::2"), 0.3f),
                    array ->
                            array.set(
                                    new NDIndex(":, 1"), array.getManager().ones(CUT.slice(0, 1))));

    private NDManager manager;

    @BeforeMethod
    public void createManager() {
        manager = NDManager.newBaseManager();
    }

    @AfterMethod
    public void closeManager() {
        manager.close();
    }

    /** Modes in which something is cut. */
    @DataProvider
    public Object[][] kinds() {
        return new Object[][] {
            {new TrainerKind(ParallelMode.TENSOR, 2)},
            {new TrainerKind(ParallelMode.MIXED, 3)},
            {TrainerKind.mesh(2, 2)},
        };
    }

    /** The error says what to do, and the training goes on as though nothing had been written. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void areRefused(TrainerKind kind) throws Exception {
        Path folder = Files.createTempDirectory("writes");
        List<float[]> untouched = train(kind, (model, trainer) -> {});
        List<float[]> refused =
                train(
                        kind,
                        (model, trainer) -> {
                            for (Consumer<NDArray> write : WRITES) {
                                assertRefused(model, write, () -> trainer.forward(data()));
                                assertRefused(model, write, () -> trainer.evaluate(data()));
                                assertRefused(model, write, trainer::step);
                                assertRefused(model, write, () -> save(trainer, folder));
                                assertRefused(model, write, () -> state(trainer));
                            }
                        });
        try (var files = Files.list(folder)) {
            Assert.assertEquals(files.count(), 0);
        }
        Files.delete(folder);
        assertEqual(refused, untouched);
    }

    /** What was trained comes into the model nevertheless. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void areRefusedByClose(TrainerKind kind) {
        List<float[]> untouched = train(kind, (model, trainer) -> {});
        try (Model model = model()) {
            Trainer trainer = open(kind, model);
            step(trainer);
            step(trainer);
            assertRefused(model, PlaceholderWritesTest::setAll, trainer::close);
            trainer.close();
            assertEqual(TrainingRun.weights(model.getBlock()), untouched);
        }
    }

    /** A placeholder comes back after the whole weight was there to be saved. */
    @Test(timeOut = 60_000)
    public void areRefusedAfterASave() throws Exception {
        Path folder = Files.createTempDirectory("writes");
        train(
                new TrainerKind(ParallelMode.TENSOR, 2),
                (model, trainer) -> {
                    save(trainer, folder);
                    trainer.evaluate(data());
                    assertRefused(
                            model,
                            PlaceholderWritesTest::setAll,
                            () -> model.save(folder, "straight"));
                });
        Files.delete(folder.resolve("net-0000.params"));
        Files.deleteIfExists(folder.resolve("straight-0000.params")); // DJL has begun it
        Files.delete(folder);
    }

    private static byte[] saved(ParallelTrainer trainer) throws Exception {
        Path folder = Files.createTempDirectory("saved");
        save(trainer, folder);
        try (var files = Files.list(folder)) {
            Path file = files.toList().get(0);
            byte[] bytes = Files.readAllBytes(file);
            Files.delete(file);
            return bytes;
        } finally {
            Files.delete(folder);
        }
    }

    /** The remedy: values that are set before are those that are trained. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void areTakenBeforeTheTrainerIsInitialized(TrainerKind kind) {
        try (Model plain = model();
                Model cut = model()) {
            for (Model model : List.of(plain, cut)) {
                Engine.getInstance().setRandomSeed(5);
                Block block = model.getBlock();
                block.initialize(model.getNDManager(), model.getDataType(), INPUT);
                setAll(weight(model));
            }
            try (Trainer expected = open(TrainerKind.PLAIN, plain);
                    Trainer actual = open(kind, cut)) {
                ArrayAssert.assertClose(
                        actual.evaluate(data()).head().toFloatArray(),
                        expected.evaluate(data()).head().toFloatArray(),
                        1e-6,
                        "" + kind);
            }
        }
    }

    private interface Use {
        void run(Model model, ParallelTrainer trainer) throws Exception;
    }

    /** Trains for two steps, between which the trainer is used, and returns the weights. */
    private List<float[]> train(TrainerKind kind, Use use) {
        try (Model model = model()) {
            try (Trainer trainer = open(kind, model)) {
                step(trainer);
                use.run(model, (ParallelTrainer) trainer);
                step(trainer);
            } catch (Exception e) {
                throw new AssertionError(e);
            }
            return TrainingRun.weights(model.getBlock());
        }
    }

    private static Model model() {
        Engine.getInstance().setRandomSeed(3);
        Model model = Model.newInstance("net", Device.cpu());
        model.setBlock(sequence(linear(5), first(true, 7), tanh(), row(true, 3)));
        return model;
    }

    private static Trainer open(TrainerKind kind, Model model) {
        Trainer trainer =
                kind.open(
                        model,
                        new DefaultTrainingConfig(new HalfSquareLoss())
                                .optDevices(new Device[] {Device.cpu()}));
        trainer.initialize(INPUT);
        return trainer;
    }

    private NDList data() {
        return new NDList(TrainingRun.random(manager, 1, INPUT.getShape()));
    }

    private void step(Trainer trainer) {
        TrainingRun.backward(trainer, data().head(), TrainingRun.random(manager, 2, 6, 3));
        trainer.step();
    }

    private static void save(ParallelTrainer trainer, Path folder) throws Exception {
        trainer.save(folder, "net");
    }

    private static void state(ParallelTrainer trainer) {
        trainer.getState().checkBetweenSteps("A checkpoint");
    }

    private static NDArray weight(Model model) {
        NDArray weight = model.getBlock().getParameters().valueAt(2).getArray();
        Assert.assertEquals(weight.getShape(), CUT);
        return weight;
    }

    private static void setAll(NDArray array) {
        float[] values = new float[(int) array.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = 0.01f * i;
        }
        array.set(values);
    }

    @SuppressWarnings("try") // a scope is used by being open
    private static void assertRefused(Model model, Consumer<NDArray> write, ThrowingRunnable call) {
        try (Autograd.GradMode mode = Autograd.gradMode(false)) { // as DJL's trainer needs it
            write.accept(weight(model));
        }
        String message = Assert.expectThrows(IllegalStateException.class, call).getMessage();
        for (String part :
                new String[] {
                    "_weight (7, 5)", "placeholder", "discarded", "before trainer.initialize"
                }) {
            Assert.assertTrue(message.contains(part), part + " in: " + message);
        }
    }

    private static void assertEqual(List<float[]> actual, List<float[]> expected) {
        for (int i = 0; i < expected.size(); i++) {
            ArrayAssert.assertBitEqual(actual.get(i), expected.get(i), "parameter " + i);
        }
    }
}
