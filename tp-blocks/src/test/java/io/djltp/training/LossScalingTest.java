package io.djltp.training;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.metric.Metrics;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.EmbeddingBag;
import io.djltp.nn.RowParallelLinear;
import io.djltp.optimizer.LossScale;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.rank.LossScaling;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.torch.AllowedPrecision;
import io.djltp.torch.Float16Product;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Supplier;

/** A loss whose scale follows the gradients, as by PyTorch's {@code GradScaler}. */
@SuppressWarnings("try") // a precision is allowed by being open
public class LossScalingTest {

    private static final float HUGE = 0x1p127f; // gradients of 2 and more are infinite with it

    @DataProvider
    public static Object[][] kinds() {
        return new Object[][] {
            {new TrainerKind(ParallelMode.TENSOR, 1)},
            {new TrainerKind(ParallelMode.TENSOR, 3)},
            {new TrainerKind(ParallelMode.DATA, 2)},
            {new TrainerKind(ParallelMode.MIXED, 2)},
            {TrainerKind.mesh(2, 2)},
        };
    }

    private static LossScaling scaling(float first, int interval) {
        return LossScaling.builder().optInitialScale(first).optGrowthInterval(interval).build();
    }

    /** What a training leaves: its scales, one of each step, the losses and the weights. */
    private record Result(List<Float> scales, List<Float> losses, List<float[]> weights) {

        Result() {
            this(new ArrayList<>(), new ArrayList<>(), new ArrayList<>());
        }
    }

    /**
     * Adam on eight batches, of which one is infinite and one has gradients that overflow with the
     * scale that has grown by then: the scales, and the weights, are those of a loop of PyTorch's
     * rules over DJL's own trainer. Adam corrects by the number of updates, so that one which
     * counted a step that was left out would be seen.
     */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void theStepsAreThoseOfPyTorchsRules(TrainerKind kind) {
        Result expected = trainByRules(scaling(0x1p124f, 2));
        Result actual = train(kind.scaledBy(scaling(0x1p124f, 2)));
        Assert.assertEquals(actual.scales, expected.scales);
        List<Float> distinct = expected.scales.stream().distinct().toList();
        Assert.assertTrue(distinct.size() >= 3, "the scale grows and falls: " + expected.scales);
        for (int i = 0; i < expected.weights.size(); i++) {
            ArrayAssert.assertClose(
                    actual.weights.get(i), expected.weights.get(i), 1e-5, "parameter " + i);
        }
    }

    private static Block network() {
        return sequence(linear(6), tanh(), head(9), tanh(), row(true, 4));
    }

    private static NDArray data(NDManager manager, int step) {
        NDArray data = TrainingRun.random(manager, step, 7, 5);
        return step == 3 ? data.mul(Float.POSITIVE_INFINITY) : data;
    }

    private static NDArray labels(NDManager manager, int step) {
        // a loss of large differences: its gradients overflow
        return TrainingRun.random(manager, 50 + step, 7, 4).mul(step == 5 ? 1e6f : 10);
    }

    private static DefaultTrainingConfig adam() {
        return new DefaultTrainingConfig(Loss.l2Loss())
                .optOptimizer(Optimizer.adam().optLearningRateTracker(Tracker.fixed(0.05f)).build())
                .optDevices(new Device[] {Device.cpu()});
    }

    private static Result train(TrainerKind kind) {
        Result result = new Result();
        Engine.getInstance().setRandomSeed(42);
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(network());
            try (ParallelTrainer trainer = (ParallelTrainer) kind.open(model, adam())) {
                trainer.initialize(new Shape(7, 5));
                trainer.setMetrics(new Metrics());
                for (int step = 0; step < 8; step++) {
                    TrainingRun.backward(trainer, data(manager, step), labels(manager, step));
                    trainer.step();
                    result.scales.add(trainer.getState().getLossScale().get());
                }
                Assert.assertEquals(trainer.getState().getStep(), 8);
                List<Float> metric = new ArrayList<>();
                trainer.getMetrics()
                        .getMetric("loss_scale")
                        .forEach(each -> metric.add(each.getValue().floatValue()));
                Assert.assertEquals(metric, result.scales);
            }
            result.weights.addAll(TrainingRun.weights(model.getBlock()));
        }
        return result;
    }

    /** {@code scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()}. */
    private static Result trainByRules(LossScaling settings) {
        Result result = new Result();
        float scale = settings.getInitialScale();
        int good = 0;
        Engine.getInstance().setRandomSeed(42);
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(sequence(linear(6), tanh(), linear(9), tanh(), linear(4)));
            try (Trainer trainer = model.newTrainer(adam())) {
                trainer.initialize(new Shape(7, 5));
                for (int step = 0; step < 8; step++) {
                    NDList target = new NDList(labels(manager, step));
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDList output = trainer.forward(new NDList(data(manager, step)), target);
                        collector.backward(trainer.getLoss().evaluate(target, output).mul(scale));
                    }
                    boolean finite = true;
                    for (Parameter parameter : model.getBlock().getParameters().values()) {
                        NDArray gradient = parameter.getArray().getGradient();
                        for (float each : gradient.toFloatArray()) {
                            finite &= Float.isFinite(each);
                        }
                        gradient.muli(1 / scale);
                    }
                    if (finite) {
                        trainer.step();
                    } else {
                        for (Parameter parameter : model.getBlock().getParameters().values()) {
                            int size = (int) parameter.getArray().size();
                            parameter.getArray().getGradient().set(new float[size]);
                        }
                    }
                    good = finite ? good + 1 : 0;
                    if (!finite) {
                        scale *= settings.getBackoffFactor();
                    } else if (good == settings.getGrowthInterval()) {
                        good = 0;
                        float grown = scale * settings.getGrowthFactor();
                        scale = Float.isFinite(grown) ? grown : scale;
                    }
                    result.scales.add(scale);
                }
            }
            result.weights.addAll(TrainingRun.weights(model.getBlock()));
        }
        return result;
    }

    @DataProvider
    public static Object[][] heads() {
        List<Object[]> cases = new ArrayList<>();
        for (Object[] kind : kinds()) {
            for (boolean sampled : new boolean[] {false, true}) {
                cases.add(new Object[] {kind[0], sampled, Precision.FLOAT32});
            }
        }
        if (Float16Product.isThere(false)) {
            cases.add(
                    new Object[] {
                        new TrainerKind(ParallelMode.TENSOR, 3), true, Precision.FLOAT16
                    });
            cases.add(
                    new Object[] {
                        new TrainerKind(ParallelMode.MIXED, 2), false, Precision.FLOAT16
                    });
        }
        return cases.toArray(new Object[0][]);
    }

    /**
     * A fused head, and a table of which few rows are used, which update themselves: with a scale,
     * a power of 2, they have the bits of a training without it whose steps are those that were not
     * left out. The first scales are so large that gradients overflow.
     */
    @Test(dataProvider = "heads", timeOut = 60_000)
    public void fusedHeadsAndTablesHaveTheBitsOfATrainingWithoutScale(
            TrainerKind kind, boolean sampled, Precision precision) {
        Supplier<Block> network =
                () ->
                        sequence(
                                new EmbeddingBag(30, 6),
                                linear(5),
                                tanh(),
                                ClassificationHead.builder()
                                        .setUnits(40)
                                        .optBatchShardedInput(true)
                                        .optSampleShare(sampled ? 0.5f : 1)
                                        .optPrecision(precision)
                                        .build());
        int batches = sampled ? 1 : 2; // whose gradients are added up: not of drawn classes
        List<Integer> left = new ArrayList<>();
        try (AllowedPrecision allowed = new AllowedPrecision(precision)) {
            Result scaled = trainTable(kind.scaledBy(scaling(HUGE, 1000)), network, batches, left);
            Assert.assertTrue(left.size() >= 2 && left.size() < 8, "left out: " + left);
            Result plain = trainTable(kind, network, batches, new ArrayList<>(left));
            for (int i = 0; i < plain.weights.size(); i++) {
                ArrayAssert.assertBitEqual(
                        scaled.weights.get(i), plain.weights.get(i), "parameter " + i);
            }
            Assert.assertEquals(plain.losses, scaled.losses);
        }
    }

    /** Trains without the steps that are left out, or, with a scale, says which ones are. */
    private static Result trainTable(
            TrainerKind kind, Supplier<Block> network, int batches, List<Integer> left) {
        Result result = new Result();
        Engine.getInstance().setRandomSeed(42);
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                        .optOptimizer(
                                RowwiseAdagrad.builder()
                                        .optLearningRateTracker(Tracker.fixed(0.1f))
                                        .build())
                        .optDevices(new Device[] {Device.cpu()});
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(network.get());
            try (ParallelTrainer trainer = (ParallelTrainer) kind.open(model, config)) {
                trainer.initialize(new Shape(8, 3));
                for (int step = 0; step < 12; step++) {
                    if (kind.scaling() == null && left.contains(step)) {
                        continue;
                    }
                    LossScale.State before = trainer.getState().getLossScale().getState();
                    float loss = Float.NaN;
                    for (int i = 0; i < batches; i++) {
                        int seed = step + 100 * i;
                        NDArray ids =
                                TrainingRun.labels(manager, seed, 24, 29).add(1).reshape(8, 3);
                        NDArray labels = TrainingRun.labels(manager, 50 + seed, 8, 40);
                        NDList target = new NDList(labels);
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            NDList output = trainer.forward(new NDList(ids), target);
                            NDArray value = trainer.getLoss().evaluate(target, output);
                            loss = value.getFloat();
                            collector.backward(value.mul(64)); // of gradients near 2
                        }
                    }
                    trainer.step();
                    LossScale.State after = trainer.getState().getLossScale().getState();
                    if (after.skippedSteps() > before.skippedSteps()) {
                        left.add(step);
                    } else {
                        result.losses.add(loss);
                    }
                }
            }
            result.weights.addAll(TrainingRun.weights(model.getBlock()));
        }
        return result;
    }

    /**
     * Layers in float16, which the processor is allowed here: too large a scale, then one that
     * fits.
     */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void layersInFloat16LearnWithAScaleThatFits(TrainerKind kind) {
        Result expected = train16(kind, Precision.FLOAT32);
        try (AllowedPrecision allowed = new AllowedPrecision(Precision.FLOAT16)) {
            Result actual = train16(kind.scaledBy(scaling(0x1p60f, 1000)), Precision.FLOAT16);
            float last = actual.scales.get(actual.scales.size() - 1);
            Assert.assertTrue(last < 0x1p60f && last > 0x1p30f, "" + actual.scales);
            for (int i = 0; i < expected.weights.size(); i++) {
                ArrayAssert.assertClose(
                        actual.weights.get(i), expected.weights.get(i), 0.005, "parameter " + i);
            }
        }
    }

    /** Three updates of a loss whose gradients float16 has no numbers for without a scale. */
    private static Result train16(TrainerKind kind, Precision precision) {
        float tiny = 1e-7f;
        Result result = new Result();
        Engine.getInstance().setRandomSeed(42);
        Block block =
                sequence(
                        ColumnParallelLinear.builder()
                                .setUnits(17)
                                .optBatchShardedInput(true)
                                .optPrecision(precision)
                                .build(),
                        tanh(),
                        RowParallelLinear.builder().setUnits(5).optPrecision(precision).build());
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(Loss.l2Loss("loss", tiny))
                        .optOptimizer(
                                Optimizer.sgd()
                                        .setLearningRateTracker(Tracker.fixed(0.5f / tiny))
                                        .build())
                        .optDevices(new Device[] {Device.cpu()});
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(block);
            try (ParallelTrainer trainer = (ParallelTrainer) kind.open(model, config)) {
                trainer.initialize(new Shape(9, 11));
                int updates = 0;
                for (int step = 0; step < 40 && updates < 3; step++) {
                    long left = trainer.getState().getLossScale().getState().skippedSteps();
                    NDArray data = TrainingRun.random(manager, updates, 9, 11);
                    TrainingRun.backward(
                            trainer, data, TrainingRun.random(manager, 10 + updates, 9, 5));
                    trainer.step();
                    LossScale.State state = trainer.getState().getLossScale().getState();
                    updates += state.skippedSteps() == left ? 1 : 0;
                    result.scales.add(state.scale());
                }
                Assert.assertEquals(updates, 3);
            }
            result.weights.addAll(TrainingRun.weights(block));
        }
        return result;
    }

    /** A batch that is NaN at every scale ends the training, with the weights as they were. */
    @Test(timeOut = 60_000)
    public void aNaNThatNoScaleRemovesEndsTheTraining() {
        List<float[]> before = trainOnNaN(0);
        List<float[]> after = trainOnNaN(3);
        for (int i = 0; i < after.size(); i++) {
            ArrayAssert.assertBitEqual(after.get(i), before.get(i), "parameter " + i);
        }
    }

    private static List<float[]> trainOnNaN(int steps) {
        LossScaling few = LossScaling.builder().optInitialScale(4).optLeastScale(1).build();
        TrainerKind kind = TrainerKind.mesh(2, 2).scaledBy(few);
        Engine.getInstance().setRandomSeed(42);
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(network());
            try (ParallelTrainer trainer = (ParallelTrainer) kind.open(model, adam())) {
                trainer.initialize(new Shape(7, 5));
                NDArray nan = data(manager, 0).mul(Float.NaN);
                for (int step = 1; step <= steps; step++) {
                    TrainingRun.backward(trainer, nan, labels(manager, 0));
                    if (step < 3) {
                        trainer.step();
                        continue;
                    }
                    ArithmeticException error =
                            Assert.expectThrows(ArithmeticException.class, trainer::step);
                    Assert.assertTrue(error.getMessage().contains("loss scale of 1.0"), "" + error);
                }
                Assert.assertTrue(trainer.getLearningRates().getCounts().isEmpty());
            }
            return TrainingRun.weights(model.getBlock());
        }
    }

    /** The limit is of gradients without the scale, and so is the norm that is told. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void theLimitOfTheNormIsOfGradientsWithoutScale(TrainerKind kind) {
        List<Double> norms = new ArrayList<>();
        List<float[]> weights = trainLimited(kind.clippedTo(0.5f), norms);
        List<Double> scaledNorms = new ArrayList<>();
        TrainerKind scaled = kind.clippedTo(0.5f).scaledBy(scaling(1024, 2));
        List<float[]> scaledWeights = trainLimited(scaled, scaledNorms);
        Assert.assertTrue(norms.get(0) > 0.5, "" + norms);
        for (int i = 0; i < norms.size(); i++) {
            Assert.assertEquals(scaledNorms.get(i), norms.get(i), 1e-6 * norms.get(i));
        }
        for (int i = 0; i < weights.size(); i++) {
            ArrayAssert.assertClose(scaledWeights.get(i), weights.get(i), 1e-6, "parameter " + i);
        }
    }

    private static List<float[]> trainLimited(TrainerKind kind, List<Double> norms) {
        Engine.getInstance().setRandomSeed(42);
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(network());
            try (ParallelTrainer trainer = (ParallelTrainer) kind.open(model, adam())) {
                trainer.initialize(new Shape(7, 5));
                for (int step = 0; step < 3; step++) {
                    TrainingRun.backward(trainer, data(manager, step), labels(manager, step));
                    trainer.step();
                    norms.add(trainer.getGradientNorm());
                }
            }
            return TrainingRun.weights(model.getBlock());
        }
    }

    /** A block of the user's own that updates itself would keep the scale in its gradients. */
    @Test(timeOut = 60_000)
    public void aParticipantThatKnowsNoScaleIsRefused() {
        TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, 2).scaledBy(scaling(4, 2));
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            Block centres = new ClassCentres(3, 5);
            centres.setInitializer(Initializer.ONES, Parameter.Type.OTHER);
            model.setBlock(sequence(centres, linear(4)));
            try (Trainer trainer = kind.open(model, adam())) {
                trainer.initialize(new Shape(7, 5));
                TrainingRun.backward(trainer, data(manager, 0), labels(manager, 0));
                RuntimeException error = Assert.expectThrows(RuntimeException.class, trainer::step);
                for (String part : List.of("ClassCentres", "StepParticipant.unscale")) {
                    Assert.assertTrue(error.getMessage().contains(part), "" + error);
                }
            }
        }
    }

    @Test(timeOut = 60_000)
    public void weightsInFloat16AreRefused() {
        TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, 2).scaledBy(scaling(4, 2));
        try (Model model = Model.newInstance("net")) {
            model.setBlock(network());
            model.setDataType(DataType.FLOAT16);
            IllegalArgumentException error =
                    Assert.expectThrows(
                            IllegalArgumentException.class, () -> kind.open(model, adam()));
            Assert.assertTrue(
                    error.getMessage().contains("weights of net are float16"), "" + error);
        }
    }
}
