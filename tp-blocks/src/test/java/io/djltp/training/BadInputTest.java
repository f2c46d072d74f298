package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.Refusals.throwsState;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertThrows;

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

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * Data that cannot be computed are refused with one clear error, which names the value, the limit
 * and what to do. What is refused before the ranks start leaves the trainer usable; what only a
 * rank can see ends the job, and the weights are kept.
 */
public class BadInputTest {

    private static final int ROWS = 6;
    private static final int FEATURES = 5;
    private static final int CLASSES = 7;

    /** A network, what is done with its trainer, and the error. */
    private record Case(
            String name,
            Supplier<Block> block,
            Supplier<Loss> loss,
            Consumer<Trainer> call,
            Class<? extends RuntimeException> type,
            String... parts) {

        @Override
        public String toString() {
            return name;
        }
    }

    private static Case of(
            String name,
            Consumer<Trainer> call,
            Class<? extends RuntimeException> type,
            String... parts) {
        return new Case(
                name, () -> head(CLASSES), VocabParallelCrossEntropyLoss::new, call, type, parts);
    }

    private static void add(List<Object[]> rows, Case each, TrainerKind... kinds) {
        for (TrainerKind kind : kinds) {
            rows.add(new Object[] {kind, each});
        }
    }

    private static TrainerKind[] oneAndTwo() {
        return Arrays.stream(TrainerKind.parallel(1, 2))
                .map(row -> (TrainerKind) row[0])
                .toArray(TrainerKind[]::new);
    }

    private static NDList ones(Trainer trainer, long... shape) {
        return new NDList(trainer.getManager().ones(new Shape(shape)));
    }

    @DataProvider
    public Object[][] cases() {
        Class<IllegalArgumentException> argument = IllegalArgumentException.class;
        List<Object[]> rows = new ArrayList<>();
        add(
                rows,
                of(
                        "a batch without rows",
                        t -> step(t, 0),
                        argument,
                        "batch has no rows",
                        "(0, 5)"),
                TENSOR_2,
                DATA_2,
                MIXED_2);
        for (TrainerKind kind : List.of(DATA_2, MIXED_2)) {
            add(
                    rows,
                    of(
                            "arrays that differ in rows",
                            trainer -> {
                                NDList data = ones(trainer, ROWS, FEATURES);
                                data.addAll(ones(trainer, ROWS + 1, FEATURES));
                                trainer.evaluate(data);
                            },
                            argument,
                            "(6, 5)",
                            "(7, 5)",
                            kind.mode().toString(),
                            "for each row",
                            "TENSOR mode"),
                    kind);
        }
        add(
                rows,
                of(
                        "an input of another length",
                        trainer -> trainer.evaluate(ones(trainer, ROWS, FEATURES + 1)),
                        argument,
                        "ColumnParallelLinear",
                        "(7, 5)",
                        "length 5",
                        "6)"),
                oneAndTwo());
        for (long label : new long[] {CLASSES, -1}) {
            add(
                    rows,
                    of(
                            "a label that is no class: " + label,
                            trainer -> step(trainer, new long[] {0, 1, label, 3, 4, 5}),
                            argument,
                            "The label of row 2 is " + label,
                            "7 classes are the whole numbers 0 to 6",
                            "-100"),
                    oneAndTwo());
        }
        add(
                rows,
                of(
                        "fewer labels than rows",
                        trainer -> {
                            NDArray labels = trainer.getManager().create(new long[] {1, 2, 3, 4});
                            trainer.forward(ones(trainer, ROWS, FEATURES), new NDList(labels));
                        },
                        argument,
                        "labels (4)",
                        ", 7) over all ranks",
                        "one label for each row"),
                oneAndTwo());
        add(
                rows,
                of(
                        "a step without gradients",
                        Trainer::step,
                        IllegalStateException.class,
                        "backward"),
                oneAndTwo());
        add(
                rows,
                new Case(
                        "a layer before the one that gathers",
                        () -> sequence(column(4), head(CLASSES)),
                        VocabParallelCrossEntropyLoss::new,
                        trainer -> step(trainer, ROWS),
                        IllegalStateException.class,
                        "the part (3, 5)",
                        "batch of 6",
                        "optBatchShardedInput(true)"),
                MIXED_2);
        add(
                rows,
                new Case(
                        "a loss of DJL on sliced logits",
                        () -> head(CLASSES),
                        Loss::softmaxCrossEntropyLoss,
                        trainer -> step(trainer, ROWS),
                        argument,
                        "SoftmaxCrossEntropyLoss",
                        "slice of the classes",
                        "VocabParallelCrossEntropyLoss",
                        "optGatherOutput(true)"),
                TENSOR_2);
        add(
                rows,
                new Case(
                        "a vocab-parallel loss on gathered logits",
                        () ->
                                ColumnParallelLinear.builder()
                                        .setUnits(CLASSES)
                                        .optGatherOutput(true)
                                        .build(),
                        VocabParallelCrossEntropyLoss::new,
                        trainer -> step(trainer, ROWS),
                        argument,
                        "(6, 7)",
                        "without optGatherOutput",
                        "SoftmaxCrossEntropyLoss"),
                TENSOR_2);
        return rows.toArray(new Object[0][]);
    }

    /** What all ranks refuse leaves the trainer as it was: nothing is lost. */
    @Test(dataProvider = "cases", timeOut = 60_000)
    public void isRefused(TrainerKind kind, Case each) {
        use(
                kind,
                each.block.get(),
                each.loss.get(),
                trainer -> {
                    for (int i = 0; i < 2; i++) {
                        expect(each.type, () -> each.call.accept(trainer), each.parts);
                        if (each.loss.get() instanceof VocabParallelCrossEntropyLoss
                                && trainer.getModel().getBlock() instanceof ColumnParallelLinear own
                                && own.isBatchShardedInput()) {
                            step(trainer, ROWS);
                        }
                    }
                });
    }

    @Test(timeOut = 60_000)
    public void anEvaluatorOfDjlOnSlicedLogits() {
        use(
                TENSOR_2,
                trainer -> {
                    NDList output = trainer.evaluate(ones(trainer, ROWS, FEATURES));
                    assertEquals(output.head().getShape(), new Shape(ROWS, CLASSES));
                    NDList labels =
                            new NDList(trainer.getManager().create(new long[] {0, 1, 2, 3, 4, 5}));
                    expect(
                            UnsupportedOperationException.class,
                            () -> new Accuracy().evaluate(labels, output),
                            "(6, 7)",
                            "cut over the ranks",
                            "VocabParallelAccuracy",
                            "argMax()");
                    assertThrows(
                            UnsupportedOperationException.class,
                            () -> output.head().toFloatArray());
                    step(trainer, ROWS); // nothing is lost
                });
    }

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.parallel(1, 2);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aBackwardPassOfSomethingElse(TrainerKind kind) {
        use(
                kind,
                trainer -> {
                    NDManager manager = trainer.getManager();
                    Class<IllegalArgumentException> type = IllegalArgumentException.class;
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDArray other = manager.create(1f);
                        other.setRequiresGradient(true);
                        for (NDArray array : List.of(manager.create(1f), other)) {
                            expect(
                                    type,
                                    () -> collector.backward(array),
                                    "trainer.getLoss().evaluate");
                        }
                        NDList labels = new NDList(manager.create(new long[] {0, 1, 2, 3, 4, 5}));
                        NDList output = trainer.forward(ones(trainer, ROWS, FEATURES), labels);
                        NDArray loss = trainer.getLoss().evaluate(labels, output);
                        collector.backward(loss);
                        expect(type, () -> collector.backward(loss), "not differentiated before");
                    }
                    trainer.step();
                });
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void nothingToTrain(TrainerKind kind) {
        use(
                kind,
                trainer -> {
                    trainer.getModel().getBlock().freezeParameters(true);
                    throwsState(() -> step(trainer, ROWS), "frozen", "freezeParameters(false)");
                    trainer.getModel().getBlock().freezeParameters(false);
                    step(trainer, ROWS); // nothing is lost
                });
    }

    @Test(timeOut = 60_000)
    public void aTrainerThatIsClosed() {
        use(
                TENSOR_2,
                trainer -> {
                    trainer.close();
                    NDManager manager = trainer.getModel().getNDManager();
                    NDList data = new NDList(manager.ones(new Shape(ROWS, FEATURES)));
                    throwsState(() -> trainer.evaluate(data), "closed");
                });
    }

    @DataProvider
    public Object[][] configurations() {
        return new Object[][] {
            {
                Configs.of(new VocabParallelCrossEntropyLoss(), Optimizer.rmsprop().build()),
                UnsupportedOperationException.class,
                "Sgd, Adam, AdamW, Adagrad or RowwiseAdagrad, but the optimizer is a"
                        + " ai.djl.training.optimizer.RmsProp"
            },
            {Configs.of(null), IllegalArgumentException.class, "has no loss"},
            {Configs.of(null), IllegalArgumentException.class, "DefaultTrainingConfig"},
        };
    }

    @Test(dataProvider = "configurations", timeOut = 60_000)
    public void isNotOpened(
            DefaultTrainingConfig config, Class<? extends Exception> type, String part) {
        try (Model model = Model.newInstance("net")) {
            model.setBlock(head(CLASSES));
            expect(type, () -> TENSOR_2.open(model, config), part);
        }
    }

    @DataProvider
    public Object[][] ofSequences() {
        return TrainerKind.rows(TENSOR_2, MIXED_2, MESH_2X2);
    }

    @Test(dataProvider = "ofSequences", timeOut = 60_000)
    public void sequencesOfLengthZeroAndLabelsThatAreNoNumbers(TrainerKind kind) {
        TrainingRun.of(
                kind,
                sequence(linear(6), head(9)),
                new VocabParallelCrossEntropyLoss(),
                new Shape(4, 3, 5),
                (trainer, manager, numbers) -> {
                    NDArray x = random(manager, 1, 4, 3, 5);
                    throwsArgument(
                            () -> trainer.evaluate(new NDList(manager.zeros(new Shape(4, 0, 5)))),
                            "rows of the batch are empty: (4, 0, 5)");
                    float[] values = new float[12];
                    values[2] = Float.NaN;
                    NDArray bad = manager.create(values, new Shape(4, 3));
                    throwsArgument(() -> backward(trainer, x, bad), "position [0, 2] is NaN");
                    NDArray labels = manager.zeros(new Shape(4, 3));
                    numbers.add(backward(trainer, x, labels)); // nothing is lost
                });
    }

    private static void step(Trainer trainer, int rows) {
        long[] labels = new long[rows];
        for (int i = 0; i < rows; i++) {
            labels[i] = i;
        }
        step(trainer, labels);
    }

    private static void step(Trainer trainer, long[] classes) {
        try (NDManager manager = trainer.getManager().newSubManager()) {
            NDArray data = manager.ones(new Shape(classes.length, FEATURES));
            backward(trainer, data, manager.create(classes));
            trainer.step();
        }
    }

    private static void use(TrainerKind kind, Consumer<Trainer> call) {
        use(kind, head(CLASSES), new VocabParallelCrossEntropyLoss(), call);
    }

    private static void use(TrainerKind kind, Block block, Loss loss, Consumer<Trainer> call) {
        Engine.getInstance().setRandomSeed(1);
        try (Model model = Model.newInstance("net")) {
            model.setBlock(block);
            try (Trainer trainer = kind.open(model, Configs.of(loss), new Shape(ROWS, FEATURES))) {
                call.accept(trainer);
            }
        }
    }
}
