package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.evaluator.Accuracy;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.function.Consumer;

/**
 * Data that cannot be computed are refused with one clear error, which names the value, the limit
 * and what to do. What is refused before the ranks start leaves the trainer usable; what only a
 * rank can see ends the job, and the weights are kept.
 */
public class BadInputTest {

    private static final int ROWS = 6;
    private static final int FEATURES = 5;
    private static final int CLASSES = 7;

    @Test(timeOut = 60_000)
    public void mixedModeWithALayerBeforeTheOneThatGathers() {
        Block block = sequence(column(4), head());
        Throwable cause =
                failure(
                        new TrainerKind(ParallelMode.MIXED, 2),
                        block,
                        new VocabParallelCrossEntropyLoss(),
                        trainer -> step(trainer, ROWS));
        Assert.assertTrue(cause instanceof IllegalStateException, "" + cause);
        assertMessage(cause, "the part (3, 5)", "batch of 6", "optBatchShardedInput(true)");
    }

    @DataProvider
    public Object[][] modes() {
        return new Object[][] {{ParallelMode.TENSOR}, {ParallelMode.DATA}, {ParallelMode.MIXED}};
    }

    @DataProvider
    public Object[][] cuttingModes() {
        return new Object[][] {{ParallelMode.DATA}, {ParallelMode.MIXED}};
    }

    @Test(dataProvider = "modes", timeOut = 60_000)
    public void aBatchWithoutRows(ParallelMode mode) {
        try (Model model = model(head());
                Trainer trainer =
                        open(
                                model,
                                new TrainerKind(mode, 2),
                                new VocabParallelCrossEntropyLoss())) {
            trainer.initialize(new Shape(ROWS, FEATURES));
            Refusals.expect(
                    IllegalArgumentException.class,
                    () -> step(trainer, 0),
                    "batch has no rows",
                    "(0, 5)");
            step(trainer, ROWS); // nothing is lost
        }
    }

    @Test(dataProvider = "cuttingModes", timeOut = 60_000)
    public void arraysOfABatchThatDifferInRows(ParallelMode mode) {
        try (Model model = model(head());
                Trainer trainer =
                        open(
                                model,
                                new TrainerKind(mode, 2),
                                new VocabParallelCrossEntropyLoss())) {
            trainer.initialize(new Shape(ROWS, FEATURES));
            NDManager manager = trainer.getManager();
            NDList data =
                    new NDList(
                            manager.ones(new Shape(ROWS, FEATURES)),
                            manager.ones(new Shape(ROWS + 1, FEATURES)));
            Refusals.expect(
                    IllegalArgumentException.class,
                    () -> trainer.evaluate(data),
                    "(6, 5)",
                    "(7, 5)",
                    mode.toString(),
                    "for each row",
                    "TENSOR mode");
            step(trainer, ROWS);
        }
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void anInputOfAnotherLength(TrainerKind kind) {
        Throwable cause =
                failure(
                        kind,
                        head(),
                        new VocabParallelCrossEntropyLoss(),
                        trainer -> {
                            NDManager manager = trainer.getManager();
                            trainer.evaluate(
                                    new NDList(manager.ones(new Shape(ROWS, FEATURES + 1))));
                        });
        Assert.assertTrue(cause instanceof IllegalArgumentException, "" + cause);
        assertMessage(cause, "ColumnParallelLinear", "(7, 5)", "length 5", "6)");
    }

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.parallel(1, 2);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aLabelThatIsNoClass(TrainerKind kind) {
        for (long label : new long[] {CLASSES, -1}) {
            Throwable cause =
                    failure(
                            kind,
                            head(),
                            new VocabParallelCrossEntropyLoss(),
                            trainer -> step(trainer, new long[] {0, 1, label, 3, 4, 5}));
            Assert.assertTrue(cause instanceof IllegalArgumentException, "" + cause);
            assertMessage(
                    cause,
                    "The label of row 2 is " + label,
                    "7 classes are the whole numbers 0 to 6",
                    "-100");
        }
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void fewerLabelsThanRows(TrainerKind kind) {
        Throwable cause =
                failure(
                        kind,
                        head(),
                        new VocabParallelCrossEntropyLoss(),
                        trainer -> {
                            NDManager manager = trainer.getManager();
                            NDList data = new NDList(manager.ones(new Shape(ROWS, FEATURES)));
                            NDList labels = new NDList(manager.create(new long[] {1, 2, 3, 4}));
                            trainer.forward(data, labels);
                        });
        Assert.assertTrue(cause instanceof IllegalArgumentException, "" + cause);
        assertMessage(cause, "labels (4)", ", 7) over all ranks", "one label for each row");
    }

    @Test(timeOut = 60_000)
    public void aLossOfDjlOnSlicedLogits() {
        Throwable cause =
                failure(
                        new TrainerKind(ParallelMode.TENSOR, 2),
                        head(),
                        Loss.softmaxCrossEntropyLoss(),
                        trainer -> step(trainer, ROWS));
        Assert.assertTrue(cause instanceof IllegalArgumentException, "" + cause);
        assertMessage(
                cause,
                "SoftmaxCrossEntropyLoss",
                "slice of the classes",
                "VocabParallelCrossEntropyLoss",
                "optGatherOutput(true)");
    }

    @Test(timeOut = 60_000)
    public void aVocabParallelLossOnGatheredLogits() {
        Throwable cause =
                failure(
                        new TrainerKind(ParallelMode.TENSOR, 2),
                        ColumnParallelLinear.builder()
                                .setUnits(CLASSES)
                                .optGatherOutput(true)
                                .build(),
                        new VocabParallelCrossEntropyLoss(),
                        trainer -> step(trainer, ROWS));
        Assert.assertTrue(cause instanceof IllegalArgumentException, "" + cause);
        assertMessage(cause, "(6, 7)", "without optGatherOutput", "SoftmaxCrossEntropyLoss");
    }

    @Test(timeOut = 60_000)
    public void anEvaluatorOfDjlOnSlicedLogits() {
        try (Model model = model(head());
                Trainer trainer =
                        open(
                                model,
                                new TrainerKind(ParallelMode.TENSOR, 2),
                                new VocabParallelCrossEntropyLoss())) {
            NDManager manager = trainer.getManager();
            NDList output = trainer.evaluate(new NDList(manager.ones(new Shape(ROWS, FEATURES))));
            Assert.assertEquals(output.head().getShape(), new Shape(ROWS, CLASSES));
            NDList labels = new NDList(manager.create(new long[] {0, 1, 2, 3, 4, 5}));
            Refusals.expect(
                    UnsupportedOperationException.class,
                    () -> new Accuracy().evaluate(labels, output),
                    "(6, 7)",
                    "cut over the ranks",
                    "VocabParallelAccuracy",
                    "argMax()");
            Assert.assertThrows(
                    UnsupportedOperationException.class, () -> output.head().toFloatArray());
            step(trainer, ROWS); // nothing is lost
        }
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aStepWithoutGradients(TrainerKind kind) {
        try (Model model = model(head());
                Trainer trainer = open(model, kind, new VocabParallelCrossEntropyLoss())) {
            trainer.initialize(new Shape(ROWS, FEATURES));
            Refusals.expect(IllegalStateException.class, trainer::step, "backward");
            step(trainer, ROWS);
            // and not a second one on the same gradients
            Refusals.expect(IllegalStateException.class, trainer::step, "backward");
            step(trainer, ROWS);
        }
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aBackwardPassOfSomethingElse(TrainerKind kind) {
        try (Model model = model(head());
                Trainer trainer = open(model, kind, new VocabParallelCrossEntropyLoss())) {
            NDManager manager = trainer.getManager();
            trainer.initialize(new Shape(ROWS, FEATURES));
            try (GradientCollector collector = trainer.newGradientCollector()) {
                Refusals.expect(
                        IllegalArgumentException.class,
                        () -> collector.backward(manager.create(1f)),
                        "trainer.getLoss().evaluate");
                NDArray other = manager.create(1f);
                other.setRequiresGradient(true);
                Refusals.expect(
                        IllegalArgumentException.class,
                        () -> collector.backward(other),
                        "trainer.getLoss().evaluate");
                NDList labels = new NDList(manager.create(new long[] {0, 1, 2, 3, 4, 5}));
                NDList output =
                        trainer.forward(
                                new NDList(manager.ones(new Shape(ROWS, FEATURES))), labels);
                NDArray loss = trainer.getLoss().evaluate(labels, output);
                collector.backward(loss);
                Refusals.expect(
                        IllegalArgumentException.class,
                        () -> collector.backward(loss),
                        "not differentiated before");
            }
            trainer.step();
        }
    }

    @Test(timeOut = 60_000)
    public void anOptimizerThatDjlDoesNotHaveOnPyTorch() {
        DefaultTrainingConfig config =
                Configs.of(new VocabParallelCrossEntropyLoss(), Optimizer.rmsprop().build());
        try (Model model = model(head())) {
            TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, 2);
            Refusals.expect(
                    UnsupportedOperationException.class,
                    () -> kind.open(model, config),
                    "Sgd, Adam, AdamW, Adagrad or RowwiseAdagrad, but the optimizer is a"
                            + " ai.djl.training.optimizer.RmsProp");
        }
    }

    @Test(timeOut = 60_000)
    public void aTrainerThatIsClosed() {
        try (Model model = model(head())) {
            Trainer trainer =
                    open(
                            model,
                            new TrainerKind(ParallelMode.TENSOR, 2),
                            new VocabParallelCrossEntropyLoss());
            trainer.initialize(new Shape(ROWS, FEATURES));
            trainer.close();
            NDManager manager = model.getNDManager();
            Refusals.expect(
                    IllegalStateException.class,
                    () -> trainer.evaluate(new NDList(manager.ones(new Shape(ROWS, FEATURES)))),
                    "closed");
        }
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void nothingToTrain(TrainerKind kind) {
        try (Model model = model(head());
                Trainer trainer = open(model, kind, new VocabParallelCrossEntropyLoss())) {
            trainer.initialize(new Shape(ROWS, FEATURES));
            model.getBlock().freezeParameters(true);
            Refusals.expect(
                    IllegalStateException.class,
                    () -> step(trainer, ROWS),
                    "frozen",
                    "freezeParameters(false)");
            model.getBlock().freezeParameters(false);
            step(trainer, ROWS); // nothing is lost
        }
    }

    @Test(timeOut = 60_000)
    public void noLoss() {
        try (Model model = model(head())) {
            Refusals.expect(
                    IllegalArgumentException.class,
                    () -> open(model, new TrainerKind(ParallelMode.TENSOR, 2), null),
                    "has no loss",
                    "DefaultTrainingConfig");
        }
    }

    private static Block head() {
        return Blocks.head(CLASSES);
    }

    private static Model model(Block block) {
        Engine.getInstance().setRandomSeed(1);
        Model model = Model.newInstance("net");
        model.setBlock(block);
        return model;
    }

    private static Trainer open(Model model, TrainerKind kind, Loss loss) {
        return kind.open(model, Configs.of(loss));
    }

    private static void step(Trainer trainer, int rows) {
        long[] labels = new long[rows];
        for (int i = 0; i < rows; i++) {
            labels[i] = i;
        }
        step(trainer, labels);
    }

    private static void step(Trainer trainer, long[] classes) {
        try (NDManager manager = trainer.getManager().newSubManager();
                GradientCollector collector = trainer.newGradientCollector()) {
            NDList labels = new NDList(manager.create(classes));
            NDList data = new NDList(manager.ones(new Shape(classes.length, FEATURES)));
            NDList output = trainer.forward(data, labels);
            collector.backward(trainer.getLoss().evaluate(labels, output));
            trainer.step();
        }
    }

    /** Runs something that all ranks refuse, and checks that the trainer goes on as before. */
    private static Throwable failure(
            TrainerKind kind, Block block, Loss loss, Consumer<Trainer> call) {
        try (Model model = model(block)) {
            try (Trainer trainer = open(model, kind, loss)) {
                trainer.initialize(new Shape(ROWS, FEATURES));
                RuntimeException e =
                        Assert.expectThrows(RuntimeException.class, () -> call.accept(trainer));
                if (loss instanceof VocabParallelCrossEntropyLoss && isTrainable(block)) {
                    step(trainer, ROWS); // nothing is lost
                } else {
                    Assert.expectThrows(RuntimeException.class, () -> call.accept(trainer));
                }
                return e;
            }
        }
    }

    private static boolean isTrainable(Block block) {
        return block instanceof ColumnParallelLinear
                && ((ColumnParallelLinear) block).isBatchShardedInput();
    }

    private static void assertMessage(Throwable e, String... parts) {
        for (String part : parts) {
            Assert.assertTrue(e.getMessage().contains(part), part + " in: " + e.getMessage());
        }
    }
}
