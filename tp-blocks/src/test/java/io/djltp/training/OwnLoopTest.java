package io.djltp.training;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.frozen;
import static io.djltp.testing.Blocks.fused;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.outputs;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.evaluator.IndexEvaluator;
import ai.djl.training.loss.IndexLoss;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SimpleCompositeLoss;

import io.djltp.collective.CollectiveCounts;
import io.djltp.head.TopClasses;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.loss.VocabParallelTopK;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;

/** Training loops of the user's own do on ranks what they do with DJL's trainer. */
public class OwnLoopTest {

    private static final int ROWS = 7; // uneven over 2 and more ranks
    private static final int FEATURES = 5;
    private static final int CLASSES = 11;
    private static final Shape INPUT = new Shape(ROWS, FEATURES);
    // fp32: a few steps with sums in another order
    private static final double TOLERANCE = 5e-6;

    private static final Map<String, Loop> LOOPS = new LinkedHashMap<>();

    private final Map<String, TrainingRun> ofDjl = new HashMap<>();

    /** The networks of the loops. */
    private enum Net {
        REGRESSION,
        CLASSIFICATION,
        FUSED;

        Block block(boolean cut) {
            return switch (this) {
                case REGRESSION -> sequence(linear(6), tanh(), first(cut, 8), tanh(), row(cut, 3));
                case CLASSIFICATION -> sequence(linear(8), tanh(), first(cut, CLASSES));
                case FUSED -> sequence(linear(4), fused(CLASSES));
            };
        }

        Loss loss(boolean cut) {
            return this == REGRESSION
                    ? new HalfSquareLoss()
                    : cut || this == FUSED
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
            return new NDList(random(manager, seed, ROWS, FEATURES));
        }

        NDList labels(int seed) {
            return new NDList(
                    net == Net.REGRESSION
                            ? random(manager, 100 + seed, ROWS, 3)
                            : TrainingRun.labels(manager, seed, ROWS, CLASSES));
        }

        NDArray loss(NDList labels, NDList output) {
            return trainer.getLoss().evaluate(labels, output);
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

    /** Adds a loop of three steps. */
    private static void add(String name, Pass pass) {
        LOOPS.put(
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
                    NDArray loss = use.loss(use.labels(step), output);
                    use.numbers.add(loss.getFloat());
                    collector.backward(loss);
                });
        add(
                "twice the loss",
                (use, collector, step) -> {
                    // an array, not a number: DJL would free it before the backward pass
                    NDArray two = use.manager.create(2f);
                    NDList output = use.trainer.forward(use.data(step));
                    collector.backward(use.loss(use.labels(step), output).mul(two));
                });
        LOOPS.put(
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
                        use.numbers.add(loss.getFloat());
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
                    use.numbers.add(loss.getFloat());
                    use.numbers.add(second.getFloat());
                });
        add(
                "two losses of one pass",
                (use, collector, step) -> {
                    NDList output = use.trainer.forward(use.data(step));
                    use.numbers.add(use.loss(use.labels(7), output).getFloat());
                    NDArray loss = use.loss(use.labels(step), output);
                    collector.backward(loss);
                    use.numbers.add(loss.getFloat());
                });
        add(
                "terms with a factor",
                (use, collector, step) -> {
                    NDList labels = use.labels(10 + step);
                    NDList output = use.trainer.forward(use.data(step), labels);
                    NDArray a = use.loss(labels, output);
                    NDArray b = use.loss(use.labels(20 + step), output);
                    use.numbers.add(use.loss(use.labels(30 + step), output).getFloat()); // a log
                    NDArray three = a.zerosLike().add(3);
                    NDArray sum = a.mul(three).add(b);
                    use.numbers.add(sum.getFloat());
                    collector.backward(step == 2 ? a : sum);
                });
        add(
                "an evaluation between forward and backward",
                (use, collector, step) -> {
                    NDList labels = use.labels(step);
                    NDList output = use.trainer.forward(use.data(step), labels);
                    NDList other = use.trainer.evaluate(use.data(step + 1));
                    use.numbers.add(use.loss(use.labels(step + 1), other).getFloat());
                    NDArray loss = use.loss(labels, output);
                    use.numbers.add(loss.getFloat());
                    collector.backward(loss);
                });
        LOOPS.put(
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
    }

    @DataProvider
    public Object[][] loops() {
        List<Object[]> cases = new ArrayList<>();
        for (Object[] kind : TrainerKind.parallel()) {
            LOOPS.keySet().forEach(name -> cases.add(new Object[] {kind[0], name}));
        }
        return cases.toArray(new Object[0][]);
    }

    @Test(dataProvider = "loops", timeOut = 60_000)
    public void isThatOfDjl(TrainerKind kind, String name) {
        for (Net net : List.of(Net.REGRESSION, Net.CLASSIFICATION)) {
            assertSame(kind, net, name, LOOPS.get(name));
        }
    }

    private void assertSame(TrainerKind kind, Net net, String name, Loop loop) {
        TrainingRun expected = ofDjl.computeIfAbsent(net + name, key -> net.run(PLAIN, loop));
        net.run(kind, loop).assertSame(expected, TOLERANCE);
    }

    /**
     * The ranks compute the loss in the forward pass. Who changes the labels before asking for it
     * gets the loss of what they are then.
     */
    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void labelsThatChangeAfterTheForwardPass(TrainerKind kind) {
        for (Net net : Net.values()) {
            assertSame(
                    kind,
                    net,
                    "changed labels",
                    use -> {
                        for (int step = 0; step < 3; step++) {
                            NDList labels = use.labels(step);
                            try (GradientCollector collector = use.trainer.newGradientCollector()) {
                                NDList output = use.trainer.forward(use.data(10 + step), labels);
                                labels.head().muli(0);
                                NDArray loss = use.loss(labels, output);
                                if (use.trainer instanceof ParallelTrainer) {
                                    // it is not computed once more
                                    Assert.assertSame(use.loss(labels, output), loss);
                                }
                                use.numbers.add(loss.getFloat());
                                collector.backward(loss);
                            }
                            use.trainer.step();
                        }
                    });
        }
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
                    NDList labels = use.labels(0);
                    try (GradientCollector collector = use.trainer.newGradientCollector()) {
                        NDArray loss = use.loss(labels, use.trainer.forward(use.data(0), labels));
                        collector.backward(doubled ? loss.mul(two) : loss);
                    }
                    Block block = use.trainer.getModel().getBlock();
                    gradient[0] =
                            ((ParallelTrainer) use.trainer)
                                    .getParameterStore(0)
                                    .getValue(block.getParameters().valueAt(3), Device.cpu(), true)
                                    .getGradient()
                                    .toFloatArray();
                });
        return gradient[0];
    }

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void gradientsCanBeForgotten(TrainerKind kind) {
        TrainingRun expected =
                Net.CLASSIFICATION.run(
                        PLAIN,
                        use -> {
                            TrainingRun.backward(use.trainer, use.data(1), use.labels(1));
                            use.trainer.step();
                        });
        TrainingRun actual =
                Net.CLASSIFICATION.run(
                        kind,
                        use -> {
                            TrainingRun.backward(use.trainer, use.data(0), use.labels(0));
                            try (GradientCollector collector = use.trainer.newGradientCollector()) {
                                collector.zeroGradients();
                            }
                            TrainingRun.backward(use.trainer, use.data(1), use.labels(1));
                            use.trainer.step();
                        });
        actual.assertSame(expected, TOLERANCE);
    }

    /** Nothing is summed over the ranks for a parameter that is not trained. */
    @Test(timeOut = 60_000)
    public void frozenParametersCommunicateNothing() {
        Net.CLASSIFICATION.run(
                DATA_2,
                use -> {
                    ParallelTrainer parallel = (ParallelTrainer) use.trainer;
                    use.freeze(0, true);
                    use.steps(2); // the third compares no replicas
                    use.backward(0);
                    CollectiveCounts before = parallel.getCollectiveCounts();
                    parallel.step();
                    // the weight and the bias of the other layer, in one bucket
                    CollectiveCounts counts = parallel.getCollectiveCounts().minus(before);
                    assertEquals(counts.toString(), "1 all-reduce");
                    long elements = 8 * CLASSES + CLASSES;
                    assertEquals(counts.bytes(), elements * Float.BYTES);
                });
    }

    /** What is thawed in the middle is known from then on. */
    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void aBodyThatIsThawed(TrainerKind kind) {
        List<TrainingRun> runs = new ArrayList<>();
        for (TrainerKind each : List.of(PLAIN, kind)) {
            Block body = frozen(linear(6));
            runs.add(
                    TrainingRun.of(
                            each,
                            sequence(body, tanh(), head(3)),
                            new VocabParallelCrossEntropyLoss(),
                            INPUT,
                            (trainer, manager, numbers) -> {
                                for (int step = 0; step < 4; step++) {
                                    body.freezeParameters(step < 2);
                                    numbers.add(
                                            TrainingRun.backward(
                                                    trainer,
                                                    random(manager, step, ROWS, FEATURES),
                                                    TrainingRun.labels(manager, step, ROWS, 3)));
                                    trainer.step();
                                }
                            }));
        }
        runs.get(1).assertSame(runs.get(0), TOLERANCE);
    }

    /** A parameter is used in one step, and not in the other. */
    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void anotherNetworkInEachStep(TrainerKind kind) {
        branching(kind).assertSame(branching(PLAIN), TOLERANCE);
    }

    private static TrainingRun branching(TrainerKind kind) {
        boolean cut = kind.isParallel();
        Block block =
                new GraphBlock(
                                new Shape(3),
                                (call, in) -> {
                                    NDArray x = in.head();
                                    boolean odd = x.get(0, 0).getFloat() > 0.5f;
                                    x = odd ? call.call("odd", x).tanh() : x;
                                    x = call.call("body", x);
                                    x = call.call("column", x).tanh();
                                    return new NDList(call.call("row", x));
                                })
                        .add("row", row(cut, 3), 8)
                        .add("column", first(cut, 8), 6)
                        .add("body", linear(6), FEATURES)
                        .add("odd", linear(FEATURES), FEATURES);
        return TrainingRun.of(
                kind,
                block,
                new HalfSquareLoss(),
                INPUT,
                (trainer, manager, numbers) -> {
                    for (int step = 0; step < 4; step++) {
                        NDArray x = random(manager, step, ROWS, FEATURES);
                        x.set(new NDIndex(":, 0"), step % 2);
                        NDArray labels = random(manager, 100 + step, ROWS, 3);
                        numbers.add(TrainingRun.backward(trainer, x, labels));
                        trainer.step();
                    }
                });
    }

    /** The operation changes, the parameters do not. */
    @Test(timeOut = 60_000)
    public void aSliceThatIsMisusedFromTheThirdStepOn() {
        for (ParallelMode mode : new ParallelMode[] {ParallelMode.TENSOR, ParallelMode.MIXED}) {
            AtomicInteger passes = new AtomicInteger();
            int ranks = 2;
            Block block =
                    sequence(
                            linear(6),
                            first(true, 8),
                            map(
                                    x ->
                                            passes.getAndIncrement() < 2 * ranks
                                                    ? x.tanh()
                                                    : x.softmax(-1).tanh()),
                            row(true, 3));
            passes.set(-1); // the first call asks for the shape
            throwsArgument(
                    () ->
                            TrainingRun.of(
                                    new TrainerKind(mode, ranks),
                                    block,
                                    new HalfSquareLoss(),
                                    INPUT,
                                    (trainer, manager, numbers) ->
                                            new Use(Net.REGRESSION, trainer, manager, numbers)
                                                    .steps(5)),
                    "softmax");
        }
    }

    /** DJL's evaluator of one of several outputs, which makes a list of that output alone. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void accuraciesOfTwoOutputs(TrainerKind kind) {
        twoOutputs(kind).assertSame(twoOutputs(PLAIN), TOLERANCE);
    }

    private static TrainingRun twoOutputs(TrainerKind kind) {
        Loss losses =
                new SimpleCompositeLoss()
                        .addLoss(new IndexLoss(new VocabParallelCrossEntropyLoss(), 0, 0))
                        .addLoss(new IndexLoss(new VocabParallelCrossEntropyLoss(), 1, 1));
        return TrainingRun.of(
                kind,
                outputs(head(CLASSES), fused(CLASSES)),
                losses,
                INPUT,
                (trainer, manager, numbers) -> {
                    for (int rows : new int[] {ROWS, 1, 3}) {
                        NDList data = new NDList(random(manager, 1, rows, FEATURES));
                        NDList labels =
                                new NDList(
                                        TrainingRun.labels(manager, 2, rows, CLASSES),
                                        TrainingRun.labels(manager, 3, rows, CLASSES));
                        accuracies(labels, trainer.evaluate(data), numbers);
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            NDList output = trainer.forward(data, labels);
                            collector.backward(trainer.getLoss().evaluate(labels, output));
                            accuracies(labels, output, numbers);
                        }
                        trainer.step();
                    }
                });
    }

    private static void accuracies(NDList labels, NDList output, List<Float> numbers) {
        for (int i = 0; i < output.size(); i++) {
            Evaluator accuracy = new IndexEvaluator(new VocabParallelAccuracy(3), i, i);
            NDArray right = accuracy.evaluate(labels, output).toType(DataType.FLOAT32, false);
            accuracy.addAccumulator("all");
            accuracy.updateAccumulators(new String[] {"all"}, labels, output);
            numbers.add(accuracy.getAccumulator("all"));
            TopClasses best = new VocabParallelTopK(2).evaluate(output.subNDList(1));
            for (NDArray values : new NDArray[] {right, best.logits()}) {
                for (float value : values.toFloatArray()) {
                    numbers.add(value);
                }
            }
        }
    }
}
