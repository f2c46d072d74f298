package io.djltp.training;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.fused;
import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.Refusals.throwsState;
import static io.djltp.testing.TrainerKind.DATA_1;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_1;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.step;
import static io.djltp.testing.TrainingRun.steps;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.expectThrows;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.evaluator.Accuracy;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SimpleCompositeLoss;
import ai.djl.training.loss.SoftmaxCrossEntropyLoss;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.internal.loss.ShardedPredictions;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert.ThrowingRunnable;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.function.BiFunction;
import java.util.function.Consumer;

/**
 * Calls, data and losses that cannot be computed end in one clear error, which names the value, the
 * limit and what to do, before any rank begins: the steps before and after have the bits of a
 * training in which nothing failed.
 */
@SuppressWarnings("try") // a collector is used by being open
public class RefusedCallsTest {

    private static final int ROWS = 6;
    private static final Shape INPUT = new Shape(ROWS, 5);
    private static final List<TrainerKind> ALL =
            List.of(TENSOR_1, TENSOR_2, TENSOR_3, DATA_1, DATA_2, DATA_3, MIXED_2, MESH_2X2);
    private static final List<TrainerKind> SEVERAL = List.of(TENSOR_2, DATA_2, MIXED_2, MESH_2X2);
    private static final List<TrainerKind> WITH_PLAIN = new ArrayList<>(ALL);
    private static final List<Row> TABLE = new ArrayList<>();

    /** The networks, from 5 features to 7 classes, or 3 numbers. */
    private enum Net {
        ALONE,
        HEAD,
        FUSED,
        GATHERED,
        NUMBERS;

        Block block() {
            return switch (this) {
                case ALONE -> head(7);
                case HEAD -> sequence(linear(4), head(7));
                case FUSED -> sequence(linear(4), fused(7));
                case GATHERED -> sequence(linear(4), gathered(7));
                case NUMBERS -> sequence(linear(6), tanh(), first(true, 7), tanh(), row(true, 3));
            };
        }

        Loss loss() {
            return switch (this) {
                case NUMBERS -> new HalfSquareLoss();
                case GATHERED -> new SoftmaxCrossEntropyLoss();
                default -> new VocabParallelCrossEntropyLoss();
            };
        }
    }

    /** A loss that is sound until a row says otherwise. */
    private static final class Switched extends SimpleCompositeLoss {
        private final Loss sound;
        private final BiFunction<NDList, NDList, NDArray> wrong;
        private volatile boolean isWrong;

        Switched(Loss sound, BiFunction<NDList, NDList, NDArray> wrong) {
            super("own"); // composite, as a loss of slices must be
            this.sound = sound;
            this.wrong = wrong;
        }

        @Override
        public NDArray evaluate(NDList labels, NDList logits) {
            return isWrong ? wrong.apply(labels, logits) : sound.evaluate(labels, logits);
        }
    }

    /** What is done in vain between two steps. */
    private static final class Row {
        private final String name;
        private final Net net;
        private final Consumer<Use> call;
        private BiFunction<NDList, NDList, NDArray> wrong;
        private List<TrainerKind> kinds = ALL;
        private boolean first; // before any step

        Row(String name, Net net, Consumer<Use> call) {
            this.name = name;
            this.net = net;
            this.call = call;
        }

        Row by(BiFunction<NDList, NDList, NDArray> loss) {
            wrong = loss;
            return this;
        }

        Row on(TrainerKind... some) {
            kinds = List.of(some);
            return this;
        }

        Row on(List<TrainerKind> some) {
            kinds = some;
            return this;
        }

        @Override
        public String toString() {
            return name;
        }
    }

    /** A trainer in use, with a collector that is open. */
    private record Use(Net net, Trainer trainer, NDManager manager, GradientCollector collector) {

        NDList data() {
            return new NDList(random(manager, 1, ROWS, 5));
        }

        NDList labels() {
            return new NDList(
                    net == Net.NUMBERS
                            ? random(manager, 2, ROWS, 3)
                            : TrainingRun.labels(manager, 2, ROWS, 7));
        }

        NDArray loss() {
            NDList labels = labels();
            return loss(labels, trainer.forward(data(), labels));
        }

        NDArray loss(NDList labels, NDList output) {
            return trainer.getLoss().evaluate(labels, output);
        }

        NDArray loss(NDList output) {
            return loss(labels(), output);
        }

        NDList ones(long... shape) {
            return new NDList(manager.ones(new Shape(shape)));
        }

        NDList classes(float... classes) {
            return new NDList(manager.create(classes));
        }

        /** Goes forward with labels, and computes the loss. */
        void pass(NDList labels) {
            loss(labels, trainer.forward(data(), labels));
        }

        /** Computes a loss of an input whose manager is closed. */
        NDArray closed(boolean detached) {
            try (NDManager scope = manager.newSubManager()) {
                NDList data = new NDList(random(scope, 1, ROWS, 5));
                NDArray loss = loss(trainer.forward(data, labels()));
                if (detached) {
                    loss.detach();
                }
                return loss;
            }
        }
    }

    private static Row add(String name, Net net, Consumer<Use> call) {
        Row row = new Row(name, net, call);
        TABLE.add(row);
        return row;
    }

    /** A call that throws IllegalArgumentException. */
    private static Row argument(String name, Net net, Consumer<Use> call, String... parts) {
        return add(name, net, use -> throwsArgument(() -> call.accept(use), parts));
    }

    /** A call that throws IllegalStateException. */
    private static Row state(String name, Net net, Consumer<Use> call, String... parts) {
        return add(name, net, use -> throwsState(() -> call.accept(use), parts));
    }

    // batches
    static {
        WITH_PLAIN.add(PLAIN);
        argument(
                "a batch without arrays",
                Net.ALONE,
                use -> use.trainer.forward(new NDList()),
                "batch has no arrays .. batch.getData()");
        argument(
                        "a batch without rows",
                        Net.ALONE,
                        use -> use.trainer.forward(use.ones(0, 5), use.ones(0)),
                        "batch has no rows .. (0, 5)")
                .on(SEVERAL);
        for (TrainerKind kind : List.of(DATA_2, MIXED_2)) {
            argument(
                            "arrays that differ in rows",
                            Net.ALONE,
                            use -> {
                                NDArray more = use.ones(ROWS + 1, 5).head();
                                use.trainer.evaluate(new NDList(use.data().head(), more));
                            },
                            "(6, 5)",
                            "(7, 5)",
                            kind.mode().toString(),
                            "for each row .. TENSOR mode")
                    .on(kind);
        }
        argument(
                "an input of another length",
                Net.ALONE,
                use -> use.trainer.evaluate(use.ones(ROWS, 6)),
                "ColumnParallelLinear .. (7, 5) .. length 5 .. 6)");
        argument(
                "fewer labels than rows",
                Net.ALONE,
                use -> use.trainer.forward(use.data(), use.classes(1, 2, 3, 4)),
                "labels (4) .. , 7) over all ranks .. one label for each row");
        for (Net net : List.of(Net.HEAD, Net.FUSED)) {
            for (float label : new float[] {7, -1, 1.5f, Float.NaN}) {
                String number = label == (int) label ? "" + (int) label : "" + label;
                add( // of the last rank, where the batch is cut; of a loss and an accuracy
                                "a label that is no class: " + number,
                                net,
                                use -> {
                                    NDList labels = use.classes(0, 1, 2, 3, -100, label);
                                    String part = "The label of row 5 is " + number;
                                    String limit =
                                            "the labels of 7 classes are the whole numbers 0 to 6";
                                    throwsArgument(() -> use.pass(labels), part, limit, "-100");
                                    NDList output = use.trainer.evaluate(use.data());
                                    VocabParallelAccuracy accuracy = new VocabParallelAccuracy();
                                    throwsArgument(() -> accuracy.evaluate(labels, output), part);
                                })
                        .on(WITH_PLAIN);
            }
            argument(
                            "no labels",
                            net,
                            use -> use.loss(new NDList(), use.trainer.forward(use.data())),
                            "The loss needs one array of labels")
                    .on(WITH_PLAIN);
            argument(
                    "labels that are strings",
                    net,
                    use -> use.pass(new NDList(use.manager.create("a b c d e f".split(" ")))),
                    "An array (6) of the batch holds strings");
        }
        add( // a loss of whole outputs has got no slice
                        "labels of another shape",
                        Net.GATHERED,
                        use -> {
                            RuntimeException e =
                                    expectThrows(
                                            RuntimeException.class,
                                            () -> use.pass(use.ones(ROWS, 8)));
                            assertFalse(e.getMessage().contains("slice"), e.getMessage());
                        })
                .by(Loss.l2Loss()::evaluate);
    }

    // the order of calls
    static {
        state("a step without gradients", Net.HEAD, use -> use.trainer.step(), "backward");
        state(
                "a second collector",
                Net.HEAD,
                use -> use.trainer.newGradientCollector(),
                "A gradient collector of this trainer is open .. close it before the next");
        state(
                "a manager that is closed",
                Net.HEAD,
                use -> use.collector.backward(use.closed(false)),
                "was closed .. Go backward before");
        state(
                "a manager of the inputs that is closed",
                Net.HEAD,
                use -> use.collector.backward(use.closed(true)),
                "manager of the inputs was closed .. go backward, before it is closed");
        state( // which is not left out of a sum
                "a term of a manager that is closed",
                Net.HEAD,
                use -> {
                    NDArray loss = use.closed(true);
                    use.collector.backward(use.loss().add(loss));
                },
                "manager of the inputs was closed");
        state(
                "a manager that is closed before the loss",
                Net.HEAD,
                use -> {
                    NDManager scope = use.manager.newSubManager();
                    NDList data = new NDList(random(scope, 1, ROWS, 5));
                    NDList output = use.trainer.forward(data, use.labels());
                    scope.close();
                    use.loss(output);
                },
                "manager of the inputs was closed");
        for (boolean trained : new boolean[] {false, true}) {
            argument(
                    "a backward pass of another array",
                    Net.HEAD,
                    use -> {
                        NDArray other = use.manager.create(1f);
                        other.setRequiresGradient(trained);
                        use.collector.backward(other);
                    },
                    "trainer.getLoss().evaluate");
        }
        state(
                "nothing to train",
                Net.HEAD,
                use -> {
                    Block block = use.trainer.getModel().getBlock();
                    block.freezeParameters(true);
                    try {
                        use.collector.backward(use.loss());
                    } finally {
                        block.freezeParameters(false);
                    }
                },
                "frozen .. freezeParameters(false)");
    }

    // losses
    static {
        // nothing of it depends on a parameter; DJL's own trainer throws, too
        withoutGraph((labels, logits) -> mean(labels));
        withoutGraph((labels, logits) -> logits.head().stopGradient().sum());
        withoutGraph((labels, logits) -> logits.head().argMax(1).sum());
        // the batch may stay open, as that of a loop whose arrays are one manager's does
        add(
                "a term of predictions",
                Net.GATHERED,
                use -> {
                    NDList output = use.trainer.forward(use.data(), use.labels());
                    NDArray term = use.loss(output).add(output.head().square().mean());
                    throwsArgument(
                            () -> use.collector.backward(term),
                            "(6, 7) .. outside .. SimpleCompositeLoss");
                    throwsState(use.trainer::step, "no gradients");
                });
        add(
                        "a loss that returns nothing",
                        Net.GATHERED,
                        use -> {
                            throwsArgument(use::loss, "The loss own has returned null .. scalar");
                            NDList output = use.trainer.evaluate(use.data());
                            throwsArgument(() -> use.loss(output), "null");
                        })
                .by((labels, logits) -> null);
        // of two passes, and of one with two kinds of labels
        add("several losses of a fused head", Net.FUSED, RefusedCallsTest::several)
                .by(new VocabParallelCrossEntropyLoss()::evaluate);
        // it is known when the loss is computed for the first time
        Loss both =
                new SimpleCompositeLoss("both")
                        .addLoss(new VocabParallelCrossEntropyLoss())
                        .addLoss(new VocabParallelCrossEntropyLoss());
        add(
                        "a sum of two losses of a fused head",
                        Net.FUSED,
                        use -> {
                            throwsArgument(
                                    use::loss,
                                    "2 losses of the fused head .. (7, 4) .. LossOptions");
                            use.loss(use.trainer.evaluate(use.data())); // that is possible
                        })
                .by(both::evaluate);
        add(
                        "another object",
                        Net.FUSED,
                        use -> {
                            Loss other = new VocabParallelCrossEntropyLoss();
                            NDList trained = use.trainer.forward(use.data());
                            NDList evaluated = use.trainer.evaluate(use.data());
                            for (NDList output : List.of(trained, evaluated)) {
                                throwsArgument(
                                        () -> other.evaluate(use.labels(), output),
                                        "(6, 7) .. trainer.getLoss()");
                            }
                        })
                .by(new VocabParallelCrossEntropyLoss()::evaluate);
        // it is not a cut that is in the way: a head has no logits with one rank either
        add(
                "an accuracy of DJL on a fused head",
                Net.FUSED,
                use -> {
                    NDList output = use.trainer.forward(use.data(), use.labels());
                    String message = accuracy(use, output, "fused head", "be the last layer");
                    assertFalse(message.contains("cut over the ranks"), message);
                    new VocabParallelAccuracy().evaluate(use.labels(), output);
                });
        add(
                        "an evaluator of DJL on sliced logits",
                        Net.HEAD,
                        use -> {
                            NDList output = use.trainer.forward(use.data());
                            assertEquals(output.head().getShape(), new Shape(ROWS, 7));
                            accuracy(use, output, "cut over the ranks", "trainer.evaluate");
                            expect(
                                    UnsupportedOperationException.class,
                                    () -> output.head().toFloatArray());
                            NDList whole = use.trainer.evaluate(use.data());
                            new Accuracy().evaluate(use.labels(), whole);
                            assertEquals(whole.head().toFloatArray().length, 7 * ROWS);
                        })
                .on(TENSOR_2);
        // it would be another one on each rank; numbers that come with the labels are the remedy
        for (boolean first : new boolean[] {false, true}) {
            Row draws = add("a loss that draws", Net.NUMBERS, RefusedCallsTest::drawing);
            draws.by(RefusedCallsTest::weighted).on(SEVERAL).first = first;
        }
        add(
                        "an evaluator that draws",
                        Net.HEAD,
                        use -> {
                            NDList output = use.trainer.evaluate(use.data());
                            expect(
                                    UnsupportedOperationException.class,
                                    () ->
                                            ((ShardedPredictions) output)
                                                    .evaluateOnRanks(
                                                            use.labels(), RefusedCallsTest::noise),
                                    "An evaluator draws .. RefusedCallsTest.noise");
                        })
                .on(SEVERAL);
    }

    private static void withoutGraph(BiFunction<NDList, NDList, NDArray> wrong) {
        add(
                        "a loss without a graph",
                        Net.GATHERED,
                        use -> {
                            NDArray loss = use.loss();
                            assertFalse(loss.isNaN().getBoolean()); // it has a value
                            throwsArgument(
                                    () -> use.collector.backward(loss),
                                    "parameter .. getLoss .. labels");
                        })
                .by(wrong);
    }

    private static NDArray mean(NDList labels) {
        return labels.head().toType(DataType.FLOAT32, false).mean();
    }

    private static void several(Use use) {
        NDArray first = use.loss();
        NDArray second = use.loss();
        headThrows(() -> use.collector.backward(first.add(second)));
        NDList output = use.trainer.forward(use.data(), use.labels());
        NDArray third = use.loss(output);
        NDArray fourth = use.loss(output);
        headThrows(() -> use.collector.backward(third.add(fourth)));
        NDArray fifth = use.loss();
        use.loss();
        headThrows(() -> use.collector.backward(fifth));
        throwsState(use.trainer::step, "no gradients");
    }

    private static void headThrows(ThrowingRunnable call) {
        throwsArgument(
                call, "fused head with the weight (7, 4) .. another loss .. optFusedLoss(false)");
    }

    private static String accuracy(Use use, NDList output, String... parts) {
        UnsupportedOperationException e =
                expect(
                        UnsupportedOperationException.class,
                        () -> new Accuracy().evaluate(use.labels(), output),
                        "(6, 7) .. argMax() .. VocabParallelAccuracy");
        Refusals.assertContains(e.getMessage(), parts);
        return e.getMessage();
    }

    private static void drawing(Use use) {
        String[] parts = {
            "The loss own draws random numbers",
            "RefusedCallsTest.noise",
            "one more array of the labels",
            "optRandomCheck(false)"
        };
        expect(UnsupportedOperationException.class, use::loss, parts);
        NDList output = use.trainer.evaluate(use.data());
        expect(UnsupportedOperationException.class, () -> use.loss(output), parts);
    }

    private static NDArray weighted(NDList labels, NDList predictions) {
        return predictions.head().sub(labels.head()).square().mul(noise(labels, null)).mean();
    }

    private static NDArray noise(NDList labels, NDList predictions) {
        NDArray label = labels.head();
        return label.getManager().randomUniform(0, 1, label.getShape());
    }

    @DataProvider
    public Object[][] table() {
        return TABLE.stream()
                .flatMap(row -> row.kinds.stream().map(kind -> new Object[] {row, kind}))
                .toArray(Object[][]::new);
    }

    @Test(dataProvider = "table", timeOut = 60_000)
    public void throwsAndGoesOn(Row row, TrainerKind kind) {
        run(kind, row, row.call).assertBitEqual(run(kind, row, use -> {}));
    }

    private static TrainingRun run(TrainerKind kind, Row row, Consumer<Use> between) {
        Loss sound = row.net.loss();
        Switched switched = new Switched(sound, row.wrong);
        return TrainingRun.of(
                kind,
                row.net.block(),
                row.wrong == null ? sound : switched,
                INPUT,
                (trainer, manager, numbers) -> {
                    Use use = new Use(row.net, trainer, manager, null);
                    if (!row.first) {
                        numbers.add(step(trainer, use.data(), use.labels()));
                    }
                    switched.isWrong = true;
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        between.accept(new Use(row.net, trainer, manager, collector));
                    }
                    switched.isWrong = false;
                    numbers.add(step(trainer, use.data(), use.labels()));
                });
    }

    /** As a term it is a number. */
    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void aTermWithoutAGraphIsNot(TrainerKind kind) {
        term(kind).assertSame(term(PLAIN), 1e-5);
    }

    private static TrainingRun term(TrainerKind kind) {
        Switched loss = new Switched(Net.GATHERED.loss(), (labels, logits) -> mean(labels));
        TrainingRun.Loop loop =
                (trainer, manager, numbers) -> {
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        Use use = new Use(Net.GATHERED, trainer, manager, collector);
                        NDArray first = use.loss();
                        loss.isWrong = true;
                        NDArray sum = first.add(use.loss());
                        collector.backward(sum);
                        numbers.add(sum.getFloat());
                    }
                    trainer.step();
                };
        return TrainingRun.of(kind, Net.GATHERED.block(), loss, INPUT, loop);
    }

    /** There is one generator, and one who draws from it; or the numbers come with the labels. */
    @Test(timeOut = 60_000)
    public void numbersThatAreDrawnOnceOrGiven() {
        for (TrainerKind kind : List.of(TENSOR_1, DATA_1, MIXED_1)) {
            draw(kind, false).assertSame(draw(PLAIN, false), 1e-5);
        }
        for (TrainerKind kind : SEVERAL) {
            draw(kind, true).assertSame(draw(PLAIN, true), 1e-5);
        }
    }

    private static TrainingRun draw(TrainerKind kind, boolean given) {
        Switched loss =
                new Switched(
                        Loss.l2Loss(),
                        (labels, p) ->
                                given
                                        ? p.head().sub(labels.head()).mul(labels.get(1)).mean()
                                        : weighted(labels, p));
        loss.isWrong = true;
        TrainingRun.Loop loop =
                (trainer, manager, numbers) -> {
                    manager.getEngine().setRandomSeed(7);
                    String labels = given ? "6x3 6x3" : "6x3";
                    steps(trainer, numbers, Network.batches("6x5", labels), 0, 3);
                };
        return TrainingRun.of(kind, sequence(linear(4), gathered(3)), loss, INPUT, loop);
    }

    /** A loss that was differentiated is not once more; a collector may be closed twice. */
    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void twice(TrainerKind kind) {
        TrainingRun.Loop loop =
                (trainer, manager, numbers) -> {
                    GradientCollector first = trainer.newGradientCollector();
                    first.close();
                    try (GradientCollector second = trainer.newGradientCollector()) {
                        first.close(); // once more, and not the second
                        throwsState(trainer::newGradientCollector);
                        NDArray loss = new Use(Net.HEAD, trainer, manager, second).loss();
                        second.backward(loss);
                        throwsArgument(() -> second.backward(loss), "not differentiated before");
                    }
                    trainer.step();
                    trainer.close();
                    NDList data = new NDList(manager.ones(INPUT));
                    throwsState(() -> trainer.evaluate(data), "closed");
                };
        TrainingRun.of(kind, Net.HEAD.block(), Net.HEAD.loss(), INPUT, loop);
    }

    @Test(timeOut = 60_000)
    public void sequencesOfLengthZeroAndLabelsThatAreNoNumbers() {
        for (TrainerKind kind : List.of(TENSOR_2, MIXED_2, MESH_2X2)) {
            TrainingRun.of(
                    kind,
                    sequence(linear(6), head(9)),
                    new VocabParallelCrossEntropyLoss(),
                    new Shape(4, 3, 5),
                    (trainer, manager, numbers) -> {
                        NDArray x = random(manager, 1, 4, 3, 5);
                        throwsArgument(
                                () -> trainer.evaluate(new NDList(x.get(":, :0"))),
                                "rows of the batch are empty: (4, 0, 5)");
                        float[] values = new float[12];
                        values[2] = Float.NaN;
                        NDArray bad = manager.create(values, new Shape(4, 3));
                        throwsArgument(
                                () -> TrainingRun.backward(trainer, x, bad),
                                "position [0, 2] is NaN");
                        step(trainer, x, manager.zeros(new Shape(4, 3))); // nothing is lost
                    });
        }
    }

    @Test(timeOut = 60_000)
    public void trainersThatAreNotOpened() {
        Loss loss = new VocabParallelCrossEntropyLoss();
        String rules =
                "Sgd, Adam, AdamW, Adagrad or RowwiseAdagrad, but the optimizer is a"
                        + " ai.djl.training.optimizer.RmsProp";
        try (Model model = Blocks.model(head(7))) {
            expect(
                    UnsupportedOperationException.class,
                    () -> TENSOR_2.open(model, Configs.of(loss, Optimizer.rmsprop().build())),
                    rules);
            throwsArgument(
                    () -> TENSOR_2.open(model, Configs.of(null)),
                    "has no loss .. DefaultTrainingConfig");
        }
    }
}
