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
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;

import io.djltp.layout.ParallelMode;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.Assert.ThrowingRunnable;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** A model that gets other arrays while ranks train it, or loses those that it has. */
public class ChangedModelTest {

    private static final Shape INPUT = new Shape(6, 4);
    private static final String LOADED = "is another one now, as after model.load(...)";
    private static final String FREED = "was freed, as block.clear()";

    private Path folder;

    @BeforeClass
    public void saveAnother() throws Exception {
        folder = Files.createTempDirectory("changed");
        try (Model model = model(5)) {
            model.getBlock().initialize(model.getNDManager(), model.getDataType(), INPUT);
            model.save(folder, "other");
        }
    }

    @AfterClass(alwaysRun = true)
    public void deleteFolder() throws Exception {
        Files.delete(folder.resolve("other-0000.params"));
        Files.delete(folder);
    }

    @DataProvider
    public Object[][] kinds() {
        return new Object[][] {
            {new TrainerKind(ParallelMode.TENSOR, 2)},
            {new TrainerKind(ParallelMode.DATA, 2)},
            {new TrainerKind(ParallelMode.MIXED, 2)},
            {TrainerKind.mesh(2, 2)},
        };
    }

    private interface Change {
        void run(Model model) throws Exception;
    }

    /** Nothing is computed any more, and the trained weights come into the model at the end. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void byALoad(TrainerKind kind) {
        List<float[]> untouched = train(kind, model -> {}, null);
        assertEqual(train(kind, model -> model.load(folder, "other"), LOADED), untouched);
    }

    /** What one array held is lost, as the caller has wanted; the others are there. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void byAFreedParameter(TrainerKind kind) {
        for (int index : new int[] {0, 2}) { // replicated, and cut
            train(kind, model -> array(model, index).close(), FREED);
            train(kind, model -> parameter(model, index).close(), FREED);
        }
        train(kind, model -> model.getBlock().clear(), FREED);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void byOtherContents(TrainerKind kind) {
        for (int index : new int[] {0, 2}) {
            train(
                    kind,
                    model -> {
                        NDArray array = array(model, index);
                        array.intern(model.getNDManager().ones(array.getShape()));
                    },
                    LOADED);
        }
    }

    /** The ranks have taken over their values then. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void byALoadAfterInitialize(TrainerKind kind) throws Exception {
        try (Model model = model(3)) {
            Trainer trainer = open(kind, model);
            model.load(folder, "other");
            assertRefused(trainer, LOADED);
            assertMessage(LOADED, trainer::close);
        }
    }

    /** Returns the weights of two steps, after which the model is changed. */
    private List<float[]> train(TrainerKind kind, Change change, String refused) {
        try (Model model = model(3)) {
            Trainer trainer = open(kind, model);
            step(trainer);
            step(trainer);
            change.run(model);
            if (refused == null) {
                trainer.close();
            } else {
                assertRefused(trainer, refused);
                assertMessage(refused, trainer::close);
                trainer.close(); // nothing is left to be said
            }
            boolean whole = refused == null || refused.equals(LOADED);
            return whole ? TrainingRun.weights(model.getBlock()) : List.of();
        } catch (Exception e) {
            throw new AssertionError(e);
        }
    }

    private void assertRefused(Trainer trainer, String what) {
        ParallelTrainer parallel = (ParallelTrainer) trainer;
        try (NDManager manager = NDManager.newBaseManager()) {
            NDList data = new NDList(manager.ones(INPUT));
            assertMessage(what, () -> trainer.forward(data));
            assertMessage(what, () -> trainer.evaluate(data));
            assertMessage(what, trainer::step);
            assertMessage(what, () -> parallel.save(folder, "never"));
            assertMessage(what, () -> parallel.getState().checkBetweenSteps("A checkpoint"));
            assertMessage(what, () -> trainer.initialize(INPUT));
        }
        Assert.assertFalse(Files.exists(folder.resolve("never-0000.params")));
    }

    private static void assertMessage(String part, ThrowingRunnable call) {
        String message = Assert.expectThrows(IllegalStateException.class, call).getMessage();
        for (String each : new String[] {part, "Linear_", "Close the trainer"}) {
            Assert.assertTrue(message.contains(each), message);
        }
    }

    private static Model model(int seed) {
        Engine.getInstance().setRandomSeed(seed);
        Model model = Model.newInstance("net", Device.cpu());
        model.setBlock(sequence(linear(5), first(true, 7), tanh(), row(true, 3)));
        return model;
    }

    private static Trainer open(TrainerKind kind, Model model) {
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new HalfSquareLoss())
                        .optDevices(new Device[] {Device.cpu()});
        Trainer trainer = kind.open(model, config);
        trainer.initialize(INPUT);
        return trainer;
    }

    private static void step(Trainer trainer) {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray data = TrainingRun.random(manager, 1, INPUT.getShape());
            TrainingRun.backward(trainer, data, TrainingRun.random(manager, 2, 6, 3));
            trainer.step();
        }
    }

    private static Parameter parameter(Model model, int index) {
        return model.getBlock().getParameters().valueAt(index);
    }

    private static NDArray array(Model model, int index) {
        return parameter(model, index).getArray();
    }

    private static void assertEqual(List<float[]> actual, List<float[]> expected) {
        for (int i = 0; i < expected.size(); i++) {
            ArrayAssert.assertBitEqual(actual.get(i), expected.get(i), "parameter " + i);
        }
    }
}
