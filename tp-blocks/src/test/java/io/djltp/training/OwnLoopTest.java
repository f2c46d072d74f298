package io.djltp.training;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.frozen;
import static io.djltp.testing.Blocks.fused;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.outputs;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.GraphBlock.graph;
import static io.djltp.testing.Refusals.throwsState;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainingRun.counted;
import static io.djltp.testing.TrainingRun.held;
import static io.djltp.testing.TrainingRun.note;
import static io.djltp.testing.TrainingRun.parameter;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.zeroGradients;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertNull;
import static org.testng.Assert.assertSame;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.evaluator.IndexEvaluator;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.loss.IndexLoss;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SimpleCompositeLoss;

import io.djltp.collective.CollectiveCounts;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.loss.VocabParallelTopK;
import io.djltp.nn.ClassificationHead;
import io.djltp.rank.LossScaling;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Training loops of the user's own do on ranks what they do with DJL's trainer. */
public class OwnLoopTest {

    private static final int ROWS = 7; // uneven over 2 and more ranks
    private static final Shape INPUT = new Shape(ROWS, 5);

    // fp32: a few steps with sums in another order
    private static final double TOLERANCE = 5e-6;
    private static final List<TrainerKind> EACH_MODE =
            List.of(TENSOR_1, TENSOR_2, DATA_2, MIXED_2, MESH_2X2);
    private static final Map<String, Row> LOOPS = new LinkedHashMap<>();
    private final Map<String, TrainingRun> ofDjl = new HashMap<>();

    /** The networks of the loops. */
    private enum Net {
        REGRESSION,
        CLASSIFICATION,
        FUSED,
        FROZEN_BODY,
        BRANCHING,
        TWO_HEADS,
        SAMPLED;

        Block block(boolean cut) {
            return switch (this) {
                case REGRESSION -> sequence(linear(6), tanh(), first(cut, 8), tanh(), row(cut, 3));
                case CLASSIFICATION -> sequence(linear(8), tanh(), first(cut, 11));
                case FUSED -> sequence(linear(4), fused(11));
                case FROZEN_BODY -> sequence(frozen(linear(6)), tanh(), head(11));
                case BRANCHING -> branching(cut);
                case TWO_HEADS -> outputs(head(11), fused(11));
                case SAMPLED -> sequence(linear(5), sampled());
            };
        }

        private static Block sampled() {
            ClassificationHead.Builder head = ClassificationHead.builder().setUnits(11);
            return head.optSampleShare(0.5f).optBatchShardedInput(true).build();
        }

        /** A parameter is used in one step, and not in the other. */
        private static Block branching(boolean cut) {
            return graph(
                            3,
                            (call, x) -> {
                                boolean odd = x.get(0, 0).getFloat() > 0.5f;
                                NDArray y = odd ? call.call("odd", x).tanh() : x;
                                y = call.call("column", call.call("body", y));
                                return call.call("row", y.tanh());
                            })
                    .add("row", row(cut, 3), 8)
                    .add("column", first(cut, 8), 6)
                    .add("body", linear(6), 5)
                    .add("odd", linear(5), 5);
        }

        private boolean isOfNumbers() {
            return this == REGRESSION || this == BRANCHING;
        }

        Loss loss(boolean cut) {
            if (isOfNumbers()) {
                return new HalfSquareLoss();
            }
            if (this == TWO_HEADS) {
                return new SimpleCompositeLoss()
                        .addLoss(new IndexLoss(new VocabParallelCrossEntropyLoss(), 0, 0))
                        .addLoss(new IndexLoss(new VocabParallelCrossEntropyLoss(), 1, 1));
            }
            return cut || this != CLASSIFICATION
                    ? new VocabParallelCrossEntropyLoss()
                    : Loss.softmaxCrossEntropyLoss();
        }

        TrainingRun run(TrainerKind kind, Loop loop) {
            boolean cut = kind.isParallel();
            return TrainingRun.of(
                    kind,
                    block(cut),
                    loss(cut),
                    INPUT,
                    (trainer, manager, numbers) ->
                            loop.run(new Use(this, trainer, manager, numbers)));
        }
    }

    /** A trainer in a loop. */
    private record Use(Net net, Trainer trainer, NDManager manager, List<Float> numbers) {

        NDList data(int seed) {
            NDArray x = random(manager, seed, ROWS, 5);
            if (net == Net.BRANCHING) {
                x.set(new NDIndex(":, 0"), seed % 2);
            }
            return new NDList(x);
        }

        NDList labels(int seed) {
            return new NDList(
                    net.isOfNumbers()
                            ? random(manager, 100 + seed, ROWS, 3)
                            : TrainingRun.labels(manager, seed, ROWS, 11));
        }

        NDArray loss(NDList labels, NDList output) {
            return trainer.getLoss().evaluate(labels, output);
        }

        /** Computes a loss of the first rows, and notes it. */
        NDArray loss(int seed, int rows) {
            NDIndex some = new NDIndex().addSliceDim(0, rows);
            NDList labels = new NDList(labels(seed).head().get(some));
            NDList data = new NDList(data(seed).head().get(some));
            return noted(loss(labels, trainer.forward(data, labels)));
        }

        NDArray loss(int seed) {
            return loss(seed, ROWS);
        }

        NDArray noted(NDArray loss) {
            numbers.add(loss.getFloat());
            return loss;
        }

        void backward(int seed) {
            numbers.add(TrainingRun.backward(trainer, data(seed), labels(seed)));
        }

        void steps(int steps) {
            for (int i = 0; i < steps; i++) {
                backward(i);
                trainer.step();
            }
        }

        void freeze(int layer, boolean freeze) {
            trainer.getModel().getBlock().getChildren().valueAt(layer).freezeParameters(freeze);
        }
    }

    /** A loop. */
    @FunctionalInterface
    private interface Loop {
        void run(Use use);
    }

    /** What is done for a step, before the step, with a collector. */
    @FunctionalInterface
    private interface Pass {
        void run(Use use, GradientCollector collector, int step);
    }

    /** A loop, and where it does what it does with DJL's trainer. */
    private static final class Row {
        private final Loop loop;
        private List<TrainerKind> kinds = TrainerKind.all(1, 2, 3, 4);
        private List<Net> nets = List.of(Net.REGRESSION, Net.CLASSIFICATION);

        Row(Loop loop) {
            this.loop = loop;
        }

        Row on(List<TrainerKind> some) {
            kinds = some;
            return this;
        }

        Row of(Net... some) {
            nets = List.of(some);
            return this;
        }
    }

    private static Row loop(String name, Loop loop) {
        Row row = new Row(loop);
        assertNull(LOOPS.put(name, row), name);
        return row;
    }

    /** Adds a loop of three steps. */
    private static Row add(String name, Pass pass) {
        return loop(
                name,
                use -> {
                    for (int step = 0; step < 3; step++) {
                        try (GradientCollector collector = use.trainer.newGradientCollector()) {
                            pass.run(use, collector, step);
                        }
                        use.trainer.step();
                    }
                });
    }

    static {
        add(
                "forward without labels",
                (use, collector, step) -> {
                    NDList output = use.trainer.forward(use.data(step));
                    collector.backward(use.noted(use.loss(use.labels(step), output)));
                });
        add(
                "twice the loss",
                (use, collector, step) -> {
                    // an array, not a number: DJL would free it before the backward pass
                    NDArray two = use.manager.create(2f);
                    NDList output = use.trainer.forward(use.data(step));
                    collector.backward(use.loss(use.labels(step), output).mul(two));
                });
        loop(
                "gradients of two batches",
                use -> {
                    for (int i = 0; i < 3; i++) {
                        use.backward(2 * i);
                        use.backward(2 * i + 1);
                        use.trainer.step();
                    }
                });
        add(
                "gradients of two batches in one collector",
                (use, collector, step) -> {
                    for (int i = 0; i < 2; i++) {
                        NDList labels = use.labels(step + i);
                        NDList output = use.trainer.forward(use.data(3 * i + step), labels);
                        NDArray loss = use.loss(labels, output);
                        collector.backward(loss);
                        use.noted(loss);
                    }
                });
        add(
                "a sum of two losses",
                (use, collector, step) -> {
                    NDList a = use.trainer.forward(use.data(step));
                    use.trainer.evaluate(use.data(20 + step));
                    NDList b = use.trainer.forward(use.data(10 + step));
                    NDArray second = use.loss(use.labels(step + 1), b);
                    NDArray loss = use.loss(use.labels(step), a);
                    collector.backward(loss.add(second));
                    use.noted(loss);
                    use.noted(second);
                });
        add(
                "two losses of one pass",
                (use, collector, step) -> {
                    NDList output = use.trainer.forward(use.data(step));
                    use.noted(use.loss(use.labels(7), output));
                    collector.backward(use.noted(use.loss(use.labels(step), output)));
                });
        add(
                "terms with a factor",
                (use, collector, step) -> {
                    NDList labels = use.labels(10 + step);
                    NDList output = use.trainer.forward(use.data(step), labels);
                    NDArray a = use.loss(labels, output);
                    NDArray b = use.loss(use.labels(20 + step), output);
                    use.noted(use.loss(use.labels(30 + step), output)); // a log
                    NDArray sum = use.noted(a.mul(a.zerosLike().add(3)).add(b));
                    collector.backward(step == 2 ? a : sum);
                });
        add(
                "an evaluation between forward and backward",
                (use, collector, step) -> {
                    NDList labels = use.labels(step);
                    NDList output = use.trainer.forward(use.data(step), labels);
                    NDList other = use.trainer.evaluate(use.data(step + 1));
                    use.noted(use.loss(use.labels(step + 1), other));
                    collector.backward(use.noted(use.loss(labels, output)));
                });
        loop(
                "frozen parameters",
                use -> {
                    use.freeze(0, true); // before the first step
                    use.steps(2);
                    use.freeze(0, false);
                    use.freeze(2, true); // the tensor-parallel layer, between steps
                    use.steps(2);
                    use.freeze(2, false);
                    use.steps(1);
                });
        // what is thawed in the middle is known from then on
        loop(
                        "a body that is thawed",
                        use -> {
                            use.steps(2);
                            use.freeze(0, false);
                            use.steps(2);
                        })
                .of(Net.FROZEN_BODY);
        loop("another network in each step", use -> use.steps(4)).of(Net.BRANCHING);
        // who changes the labels behind the forward pass gets the loss of what they are then
        add(
                        "labels that change after the forward pass",
                        (use, collector, step) -> {
                            NDList labels = use.labels(step);
                            NDList output = use.trainer.forward(use.data(10 + step), labels);
                            labels.head().muli(0);
                            NDArray loss = use.loss(labels, output);
                            if (use.trainer instanceof ParallelTrainer) { // computed once
                                assertSame(use.loss(labels, output), loss);
                            }
                            collector.backward(use.noted(loss));
                        })
                .of(Net.REGRESSION, Net.CLASSIFICATION, Net.FUSED);
        loop(
                        "gradients that are forgotten",
                        use -> {
                            use.backward(0);
                            zeroGradients(use.trainer);
                            use.backward(1);
                            use.trainer.step();
                        })
                .of(Net.CLASSIFICATION);
        // later steps are made by both: momentum goes on
        add(
                        "gradients that are zero",
                        (use, collector, step) ->
                                collector.backward(use.loss(1).mul(step == 1 ? 0 : 1)))
                .of(Net.CLASSIFICATION, Net.FUSED)
                .on(EACH_MODE);
        // arrays of the batch, and another pass, may be closed before the backward pass
        add(
                        "what is not needed any more",
                        (use, collector, step) -> {
                            NDManager skipped = use.manager.newSubManager();
                            NDList other = new NDList(random(skipped, 9, ROWS, 5));
                            NDList labels = use.labels(step);
                            use.loss(labels, use.trainer.forward(other, labels));
                            NDList output = use.trainer.forward(use.data(step), labels);
                            NDArray loss = use.loss(labels, output);
                            skipped.close();
                            output.head().close();
                            if (use.trainer instanceof ParallelTrainer) {
                                labels.head().close(); // DJL does not keep its Java memory
                            }
                            collector.backward(use.noted(loss));
                        })
                .of(Net.CLASSIFICATION)
                .on(EACH_MODE);
        // DJL's evaluator of one of several outputs, which makes a list of that output alone
        loop("accuracies of two outputs", OwnLoopTest::accuracies).of(Net.TWO_HEADS);
        // leaves of the caller's own have their gradient, and are nothing to the ranks
        add("a term of the caller's own", OwnLoopTest::ownTerm).of(Net.REGRESSION).on(EACH_MODE);
        add(
                        "a detached term of a replicated parameter",
                        (use, collector, step) -> {
                            NDArray array = parameter(use.trainer, 0).getArray().stopGradient();
                            collector.backward(use.loss(1).add(array.square().sum()));
                        })
                .of(Net.REGRESSION)
                .on(EACH_MODE);
        // values that have left the caller's graph are values as all others
        add(
                        "detached inputs and labels",
                        (use, collector, step) -> {
                            NDArray leaf = use.data(1).head();
                            NDArray target = use.labels(1).head();
                            leaf.setRequiresGradient(true);
                            target.setRequiresGradient(true);
                            NDList labels = new NDList(target.tanh().stopGradient());
                            NDList data = new NDList(leaf.tanh().stopGradient());
                            NDList output = use.trainer.forward(data, labels);
                            collector.backward(use.noted(use.loss(labels, output)));
                        })
                .of(Net.REGRESSION)
                .on(EACH_MODE);
        // an evaluation has no gradient to lose
        add(
                        "evaluations of a leaf",
                        (use, collector, step) -> {
                            NDArray leaf = use.data(1).head();
                            leaf.setRequiresGradient(true);
                            NDList output = use.trainer.evaluate(new NDList(leaf.tanh()));
                            use.noted(output.head().sum());
                            collector.backward(use.loss(1));
                        })
                .of(Net.REGRESSION)
                .on(EACH_MODE);
        add(
                        "a detached term of an evaluation",
                        (use, collector, step) -> {
                            NDList output = use.trainer.evaluate(use.data(2));
                            NDArray other = use.loss(use.labels(2), output);
                            collector.backward(use.loss(1).mul(other.stopGradient()));
                        })
                .of(Net.REGRESSION)
                .on(EACH_MODE);
        // of parameters whose gradients come from rank 0's array to all; also where a rank has no
        // row, and where the term is scaled with the loss
        TrainerKind scaled = DATA_2.scaledBy(LossScaling.builder().build());
        for (int rows : new int[] {ROWS, 1}) {
            term(0, rows).on(List.of(TENSOR_1, DATA_2, MIXED_2, scaled));
            term(2, rows).on(List.of(TENSOR_1, DATA_2));
        }
    }

    private static Row term(int parameter, int rows) {
        return add(
                        "a term of parameter " + parameter + ", " + rows + " rows",
                        (use, collector, step) -> {
                            NDArray array = parameter(use.trainer, parameter).getArray();
                            NDArray factor = use.trainer.getManager().create(0.01f);
                            NDArray term = array.square().sum().mul(factor);
                            collector.backward(use.noted(use.loss(1, rows).add(term)));
                        })
                .of(Net.REGRESSION);
    }

    private static void ownTerm(Use use, GradientCollector collector, int step) {
        NDArray own = random(use.manager, 5, 7, 6); // the shape of a parameter
        own.setRequiresGradient(true);
        NDArray term = own.square().sum().mul(own.getManager().create(0.3f));
        collector.backward(use.loss(1).mul(term));
        use.noted(own.getGradient().sum());
    }

    private static void accuracies(Use use) {
        for (int rows : new int[] {ROWS, 1, 3}) {
            NDList[] batch =
                    Network.batches(rows + "x5", rows + ":11 " + rows + ":11").make(use.manager, 1);
            accuracies(batch[1], use.trainer.evaluate(batch[0]), use.numbers);
            try (GradientCollector collector = use.trainer.newGradientCollector()) {
                NDList output = use.trainer.forward(batch[0], batch[1]);
                collector.backward(use.loss(batch[1], output));
                accuracies(batch[1], output, use.numbers);
            }
            use.trainer.step();
        }
    }

    private static void accuracies(NDList labels, NDList output, List<Float> numbers) {
        for (int i = 0; i < output.size(); i++) {
            Evaluator accuracy = new IndexEvaluator(new VocabParallelAccuracy(3), i, i);
            accuracy.addAccumulator("all");
            accuracy.updateAccumulators(new String[] {"all"}, labels, output);
            numbers.add(accuracy.getAccumulator("all"));
            note(numbers, accuracy.evaluate(labels, output).toType(DataType.FLOAT32, false));
            note(numbers, new VocabParallelTopK(2).evaluate(output.subNDList(1)).logits());
        }
    }

    @DataProvider
    public Object[][] loops() {
        return LOOPS.entrySet().stream()
                .flatMap(e -> e.getValue().kinds.stream().map(k -> new Object[] {k, e.getKey()}))
                .filter(row -> ((TrainerKind) row[0]).isOfBackend())
                .toArray(Object[][]::new);
    }

    @Test(dataProvider = "loops", timeOut = 60_000)
    public void isThatOfDjl(TrainerKind kind, String name) {
        Row row = LOOPS.get(name);
        for (Net net : row.nets) {
            TrainingRun expected =
                    ofDjl.computeIfAbsent(net + name, key -> net.run(PLAIN, row.loop));
            net.run(kind, row.loop).assertSame(expected, TOLERANCE);
        }
    }

    /** DJL looks for zeros before the first step, to find a loop that forgets {@code backward}. */
    @Test(dataProvider = "eachMode", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void theFirstStepWithGradientsThatAreZero(TrainerKind kind) {
        for (Net net : List.of(Net.CLASSIFICATION, Net.FUSED)) {
            Loop zero =
                    use -> {
                        try (GradientCollector collector = use.trainer.newGradientCollector()) {
                            collector.backward(use.loss(1).mul(0));
                        }
                        use.trainer.step();
                    };
            throwsState(() -> net.run(PLAIN, zero));
            Loop one = use -> use.steps(1);
            Loop both = // ranks see that themselves: the first step has changed nothing
                    use -> {
                        zero.run(use);
                        use.numbers.clear();
                        use.steps(1);
                    };
            net.run(kind, both).assertSame(net.run(PLAIN, one), 1e-5);
        }
    }

    /**
     * Two classes and no weights: each row's gradient is a half and minus a half. DJL takes a
     * gradient that sums to zero for none (DJL issue 3696).
     */
    @Test(timeOut = 60_000)
    public void aGradientThatSumsToZeroIsAGradient() {
        throwsState(() -> zeroSum(PLAIN));
        for (TrainerKind kind : TrainerKind.all(1, 2)) {
            // 3/4 of the labels are 0: the gradient is 1/2 - 3/4, the rate is 1
            assertEquals(zeroSum(kind), new float[] {0.25f, -0.25f}, "" + kind);
        }
    }

    private static float[] zeroSum(TrainerKind kind) {
        DefaultTrainingConfig config =
                Configs.of(new VocabParallelCrossEntropyLoss(), Configs.sgd(1f))
                        .optInitializer(Initializer.ZEROS, Parameter.Type.WEIGHT);
        Network.Batches batches =
                (manager, step) ->
                        new NDList[] {
                            new NDList(manager.ones(new Shape(4, 1))),
                            new NDList(manager.create(new long[] {0, 0, 1, 0}))
                        };
        return TrainingRun.of(kind, head(2), config, batches, 1).getWeights().get(1);
    }

    /**
     * Evaluators ask for the loss again before the step: it is there, and a head that draws classes
     * keeps its gradient.
     */
    @Test(dataProvider = "eachMode", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void theLossIsThereAfterTheBackwardPass(TrainerKind kind) {
        Net.SAMPLED.run(
                kind,
                use -> {
                    for (int step = 1; step <= 3; step++) {
                        NDList labels = use.labels(step);
                        NDList output;
                        NDArray loss;
                        try (GradientCollector collector = use.trainer.newGradientCollector()) {
                            output = use.trainer.forward(use.data(step), labels);
                            loss = use.loss(labels, output);
                            collector.backward(loss);
                        }
                        assertSame(use.loss(labels, output), loss);
                        use.trainer.step();
                    }
                });
    }

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void twiceTheLossHasTwiceTheGradients(TrainerKind kind) {
        float[] once = biasGradient(kind, false);
        float[] twice = biasGradient(kind, true);
        for (int i = 0; i < once.length; i++) {
            assertEquals(twice[i], 2 * once[i], 0); // a factor of two rounds nothing
        }
    }

    /** The gradients that rank 0 has of its part of the last bias. */
    private static float[] biasGradient(TrainerKind kind, boolean doubled) {
        float[][] gradient = new float[1][];
        Net.CLASSIFICATION.run(
                kind,
                use -> {
                    NDArray two = use.manager.create(2f);
                    try (GradientCollector collector = use.trainer.newGradientCollector()) {
                        NDArray loss = use.loss(0);
                        collector.backward(doubled ? loss.mul(two) : loss);
                    }
                    gradient[0] = held(use.trainer, 0, 3).getGradient().toFloatArray();
                });
        return gradient[0];
    }

    /** Nothing is summed over the ranks for a parameter that is not trained. */
    @Test(timeOut = 60_000)
    public void frozenParametersCommunicateNothing() {
        Net.CLASSIFICATION.run(
                DATA_2,
                use -> {
                    use.freeze(0, true);
                    use.steps(2); // the third compares no replicas
                    use.backward(0);
                    // the weight and the bias of the other layer, in one bucket
                    CollectiveCounts counts = counted(use.trainer, use.trainer::step);
                    assertEquals(counts.toString(), "1 all-reduce");
                    assertEquals(counts.bytes(), (8L * 11 + 11) * Float.BYTES);
                });
    }
}
