package io.djltp.training;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.training.tracker.Tracker;

import io.djltp.internal.torch.Float16Product;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.EmbeddingBag;
import io.djltp.nn.RowParallelLinear;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.rank.LossScaling;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.torch.AllowedPrecision;
import io.djltp.torch.Precision;
import io.djltp.training.ScaledTraining.Result;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.function.BiFunction;

/** A loss whose scale follows the gradients, as by PyTorch's {@code GradScaler}. */
@SuppressWarnings("try") // a precision is allowed by being open
public class LossScalingTest {

    static final Shape INPUT = new Shape(7, 5);
    private static final int STEPS = 8;
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

    static LossScaling scaling(float first, int interval) {
        return LossScaling.builder().optInitialScale(first).optGrowthInterval(interval).build();
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
        Result actual = adam(LossScalingTest::data).run(kind.scaledBy(scaling(0x1p124f, 2)), STEPS);
        Assert.assertEquals(actual.scales, expected.scales);
        Assert.assertEquals(actual.metric, expected.scales);
        Assert.assertEquals(actual.steps, STEPS);
        List<Float> distinct = expected.scales.stream().distinct().toList();
        Assert.assertTrue(distinct.size() >= 3, "the scale grows and falls: " + expected.scales);
        ArrayAssert.assertAllClose(actual.weights, expected.weights, 1e-5, "parameter");
    }

    /** Adam, and a loss of large differences in one step, whose gradients overflow. */
    static ScaledTraining adam(BiFunction<NDManager, Integer, NDArray> data) {
        return new ScaledTraining(
                LossScalingTest::network,
                LossScalingTest::config,
                INPUT,
                (trainer, manager, step) ->
                        TrainingRun.backward(
                                trainer, data.apply(manager, step), labels(manager, step)));
    }

    static Block network() {
        return sequence(linear(6), tanh(), head(9), tanh(), row(true, 4));
    }

    static NDArray data(NDManager manager, int step) {
        NDArray data = TrainingRun.random(manager, step, 7, 5);
        return step == 3 ? data.mul(Float.POSITIVE_INFINITY) : data;
    }

    static NDArray labels(NDManager manager, int step) {
        return TrainingRun.random(manager, 50 + step, 7, 4).mul(step == 5 ? 1e6f : 10);
    }

    static DefaultTrainingConfig config() {
        return Configs.of(Loss.l2Loss(), Configs.adam(0.05f));
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
            try (Trainer trainer = model.newTrainer(config())) {
                trainer.initialize(INPUT);
                for (int step = 0; step < STEPS; step++) {
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
        ScaledTraining training =
                new ScaledTraining(
                        () -> tableAndHead(sampled, precision),
                        LossScalingTest::rowwise,
                        new Shape(8, 3),
                        // gradients of drawn classes are not added up
                        (trainer, manager, step) -> backward(trainer, manager, step, !sampled));
        try (AllowedPrecision allowed = new AllowedPrecision(precision)) {
            Result scaled = training.run(kind.scaledBy(scaling(HUGE, 1000)), 12);
            List<Integer> left = scaled.leftOut;
            Assert.assertTrue(left.size() >= 2 && left.size() < 8, "left out: " + left);
            Result plain = training.run(kind, 12, 12, left);
            ArrayAssert.assertAllBitEqual(scaled.weights, plain.weights, "parameter");
            Assert.assertEquals(plain.losses, scaled.losses);
        }
    }

    private static Block tableAndHead(boolean sampled, Precision precision) {
        Block head =
                ClassificationHead.builder()
                        .setUnits(40)
                        .optBatchShardedInput(true)
                        .optSampleShare(sampled ? 0.5f : 1)
                        .optPrecision(precision)
                        .build();
        return sequence(new EmbeddingBag(30, 6), linear(5), tanh(), head);
    }

    private static DefaultTrainingConfig rowwise() {
        return Configs.of(
                new VocabParallelCrossEntropyLoss(),
                RowwiseAdagrad.builder().optLearningRateTracker(Tracker.fixed(0.1f)).build());
    }

    /** Computes gradients near 2, of one batch or of two. */
    private static float backward(Trainer trainer, NDManager manager, int step, boolean twice) {
        float loss = Float.NaN;
        for (int seed = step; seed <= step + (twice ? 100 : 0); seed += 100) {
            NDArray ids = TrainingRun.labels(manager, seed, 24, 29).add(1).reshape(8, 3);
            NDList target = new NDList(TrainingRun.labels(manager, 50 + seed, 8, 40));
            try (GradientCollector collector = trainer.newGradientCollector()) {
                NDList output = trainer.forward(new NDList(ids), target);
                NDArray value = trainer.getLoss().evaluate(target, output);
                loss = value.getFloat();
                collector.backward(value.mul(64));
            }
        }
        return loss;
    }

    /**
     * Layers in float16, which the processor is allowed here: too large a scale, then one that
     * fits.
     */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void layersInFloat16LearnWithAScaleThatFits(TrainerKind kind) {
        Result actual;
        try (AllowedPrecision allowed = new AllowedPrecision(Precision.FLOAT16)) {
            TrainerKind scaled = kind.scaledBy(scaling(0x1p60f, 1000));
            actual = tinyLoss(Precision.FLOAT16).run(scaled, 40, 3, List.of());
        }
        float last = actual.scales.get(actual.scales.size() - 1);
        Assert.assertTrue(last < 0x1p60f && last > 0x1p30f, "" + actual.scales);
        Result expected = tinyLoss(Precision.FLOAT32).run(kind, 40, 3, actual.leftOut);
        for (Result each : List.of(actual, expected)) {
            Assert.assertEquals(each.losses.size(), 3);
        }
        ArrayAssert.assertAllClose(actual.weights, expected.weights, 0.005, "parameter");
    }

    /** A loss whose gradients float16 has no numbers for without a scale. */
    private static ScaledTraining tinyLoss(Precision precision) {
        float tiny = 1e-7f;
        ColumnParallelLinear.Builder column =
                ColumnParallelLinear.builder().setUnits(17).optBatchShardedInput(true);
        RowParallelLinear.Builder row = RowParallelLinear.builder().setUnits(5);
        return new ScaledTraining(
                () ->
                        sequence(
                                column.optPrecision(precision).build(),
                                tanh(),
                                row.optPrecision(precision).build()),
                () -> Configs.of(Loss.l2Loss("loss", tiny), Configs.sgd(0.5f / tiny)),
                new Shape(9, 11),
                (trainer, manager, step) ->
                        TrainingRun.backward(
                                trainer,
                                TrainingRun.random(manager, step, 9, 11),
                                TrainingRun.random(manager, 100 + step, 9, 5)));
    }

    /** The limit is of gradients without the scale, and so is the norm that is told. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void theLimitOfTheNormIsOfGradientsWithoutScale(TrainerKind kind) {
        TrainerKind limited = kind.clippedTo(0.5f);
        Result plain = adam(LossScalingTest::data).run(limited, 3);
        Result scaled = adam(LossScalingTest::data).run(limited.scaledBy(scaling(1024, 2)), 3);
        Assert.assertTrue(plain.norms.get(0) > 0.5, "" + plain.norms);
        for (int i = 0; i < 3; i++) {
            double norm = plain.norms.get(i);
            Assert.assertEquals(scaled.norms.get(i), norm, 1e-6 * norm);
        }
        ArrayAssert.assertAllClose(scaled.weights, plain.weights, 1e-6, "parameter");
    }
}
