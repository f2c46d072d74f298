package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllBitEqual;
import static io.djltp.testing.ArrayAssert.assertAllClose;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.newHead;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertTrue;

import ai.djl.Model;
import ai.djl.metric.Metric;
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
import ai.djl.training.tracker.Tracker;

import io.djltp.internal.optimizer.LossScale;
import io.djltp.internal.torch.Float16Product;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.EmbeddingBag;
import io.djltp.nn.RowParallelLinear;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.rank.LossScaling;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.torch.AllowedPrecision;
import io.djltp.torch.Precision;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.function.BiFunction;
import java.util.function.Supplier;

/** A loss whose scale follows the gradients, as by PyTorch's {@code GradScaler}. */
@SuppressWarnings("try") // a precision is allowed by being open
public class LossScalingTest {

    /**
     * A training of which steps may be left out, because their gradients are not finite with the
     * scale of the loss.
     *
     * @param network makes the network
     * @param config makes the configuration
     * @param input the shape of a batch
     * @param batch computes the gradients of a step
     */
    private record ScaledTraining(
            Supplier<Block> network,
            Supplier<DefaultTrainingConfig> config,
            Shape input,
            Gradients batch) {

        /** Computes the gradients of a step. */
        @FunctionalInterface
        interface Gradients {

            /** Returns the loss. */
            float compute(ParallelTrainer trainer, NDManager manager, int step);
        }

        /** Makes some steps. */
        Result run(TrainerKind kind, int steps) {
            return run(kind, steps, steps, List.of());
        }

        /**
         * Makes steps.
         *
         * @param kind the trainer
         * @param steps how many at most
         * @param updates after how many that have changed the weights it ends
         * @param without the numbers of steps that are not made
         */
        Result run(TrainerKind kind, int steps, int updates, List<Integer> without) {
            Result result = new Result();
            TrainingRun.Loop loop =
                    (any, manager, numbers) -> {
                        ParallelTrainer trainer = (ParallelTrainer) any;
                        trainer.setMetrics(new Metrics());
                        int step = 0;
                        while (step < steps && result.losses.size() < updates) {
                            if (!without.contains(step) && !make(trainer, manager, step, result)) {
                                break;
                            }
                            step++;
                        }
                        List<Metric> metric = trainer.getMetrics().getMetric("loss_scale");
                        metric.forEach(each -> result.metric.add(each.getValue().floatValue()));
                        result.steps = trainer.getState().getStep();
                        result.hasUpdated = !trainer.getLearningRates().getCounts().isEmpty();
                    };
            TrainingRun run = TrainingRun.of(kind, network.get(), config.get(), input, loop);
            result.weights = run.getWeights();
            return result;
        }

        /** Returns whether the training goes on. */
        private boolean make(ParallelTrainer trainer, NDManager manager, int step, Result result) {
            LossScale scale = trainer.getState().getLossScale();
            long before = scale.getState().skippedSteps();
            float loss = batch.compute(trainer, manager, step);
            try {
                trainer.step();
            } catch (ArithmeticException e) {
                result.end = e;
                return false;
            }
            result.scales.add(scale.get());
            result.norms.add(trainer.getGradientNorm());
            if (scale.getState().skippedSteps() > before) {
                result.leftOut.add(step);
            } else {
                result.losses.add(loss);
            }
            return true;
        }
    }

    /** What a training leaves. */
    private static final class Result {

        /** Of each step that was made. */
        final List<Float> scales = new ArrayList<>();

        final List<Double> norms = new ArrayList<>();

        /** Of each step that has changed the weights. */
        final List<Float> losses = new ArrayList<>();

        /** The steps that have not. */
        final List<Integer> leftOut = new ArrayList<>();

        /** The scales of DJL's metrics. */
        final List<Float> metric = new ArrayList<>();

        List<float[]> weights;
        long steps;
        boolean hasUpdated;
        ArithmeticException end; // or null
    }

    static final Shape INPUT = new Shape(7, 5);
    private static final int STEPS = 8;
    private static final float HUGE = 0x1p127f; // gradients of 2 and more are infinite with it

    @DataProvider
    public static Object[][] kinds() {
        return TrainerKind.rows(TENSOR_1, TENSOR_3, DATA_2, MIXED_2, MESH_2X2);
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
        assertEquals(actual.scales, expected.scales);
        assertEquals(actual.metric, expected.scales);
        assertEquals(actual.steps, STEPS);
        List<Float> distinct = expected.scales.stream().distinct().toList();
        assertTrue(distinct.size() >= 3, "the scale grows and falls: " + expected.scales);
        assertAllClose(actual.weights, expected.weights, 1e-5, "parameter");
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
        NDArray data = random(manager, step, 7, 5);
        return step == 3 ? data.mul(Float.POSITIVE_INFINITY) : data;
    }

    static NDArray labels(NDManager manager, int step) {
        return random(manager, 50 + step, 7, 4).mul(step == 5 ? 1e6f : 10);
    }

    static DefaultTrainingConfig config() {
        return Configs.of(Loss.l2Loss(), Configs.adam(0.05f));
    }

    /** {@code scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()}. */
    private static Result trainByRules(LossScaling settings) {
        Result result = new Result();
        TrainingRun run =
                TrainingRun.of(
                        PLAIN,
                        sequence(linear(6), tanh(), linear(9), tanh(), linear(4)),
                        config(),
                        INPUT,
                        (trainer, manager, scales) -> {
                            float scale = settings.getInitialScale();
                            int good = 0;
                            for (int step = 0; step < STEPS; step++) {
                                backwardBy(trainer, manager, step, scale);
                                boolean finite = unscale(trainer, scale);
                                if (finite) {
                                    trainer.step();
                                }
                                good = finite ? good + 1 : 0;
                                if (!finite) {
                                    scale *= settings.getBackoffFactor();
                                } else if (good == settings.getGrowthInterval()) {
                                    good = 0;
                                    float grown = scale * settings.getGrowthFactor();
                                    scale = Float.isFinite(grown) ? grown : scale;
                                }
                                scales.add(scale);
                            }
                        });
        result.scales.addAll(run.getNumbers());
        result.weights = run.getWeights();
        return result;
    }

    private static void backwardBy(Trainer trainer, NDManager manager, int step, float scale) {
        NDList target = new NDList(labels(manager, step));
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDList output = trainer.forward(new NDList(data(manager, step)), target);
            collector.backward(trainer.getLoss().evaluate(target, output).mul(scale));
        }
    }

    /** Takes the scale from the gradients, or sets them to zero if one is not finite. */
    private static boolean unscale(Trainer trainer, float scale) {
        List<NDArray> gradients =
                trainer.getModel().getBlock().getParameters().values().stream()
                        .map(parameter -> parameter.getArray().getGradient())
                        .toList();
        boolean finite = true;
        for (NDArray gradient : gradients) {
            for (float each : gradient.toFloatArray()) {
                finite &= Float.isFinite(each);
            }
        }
        for (NDArray gradient : gradients) {
            if (finite) {
                gradient.muli(1 / scale);
            } else {
                gradient.set(new float[(int) gradient.size()]);
            }
        }
        return finite;
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
            cases.add(new Object[] {TENSOR_3, true, Precision.FLOAT16});
            cases.add(new Object[] {MIXED_2, false, Precision.FLOAT16});
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
            assertTrue(left.size() >= 2 && left.size() < 8, "left out: " + left);
            Result plain = training.run(kind, 12, 12, left);
            assertAllBitEqual(scaled.weights, plain.weights, "parameter");
            assertEquals(plain.losses, scaled.losses);
        }
    }

    private static Block tableAndHead(boolean sampled, Precision precision) {
        Block head =
                newHead(40)
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
        assertTrue(last < 0x1p60f && last > 0x1p30f, "" + actual.scales);
        Result expected = tinyLoss(Precision.FLOAT32).run(kind, 40, 3, actual.leftOut);
        for (Result each : List.of(actual, expected)) {
            assertEquals(each.losses.size(), 3);
        }
        assertAllClose(actual.weights, expected.weights, 0.005, "parameter");
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
                                random(manager, step, 9, 11),
                                random(manager, 100 + step, 9, 5)));
    }

    /** The limit is of gradients without the scale, and so is the norm that is told. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void theLimitOfTheNormIsOfGradientsWithoutScale(TrainerKind kind) {
        TrainerKind limited = kind.clippedTo(0.5f);
        Result plain = adam(LossScalingTest::data).run(limited, 3);
        Result scaled = adam(LossScalingTest::data).run(limited.scaledBy(scaling(1024, 2)), 3);
        assertTrue(plain.norms.get(0) > 0.5, "" + plain.norms);
        for (int i = 0; i < 3; i++) {
            double norm = plain.norms.get(i);
            assertEquals(scaled.norms.get(i), norm, 1e-6 * norm);
        }
        assertAllClose(scaled.weights, plain.weights, 1e-6, "parameter");
    }

    /** A batch that is NaN at every scale ends the training, with the weights as they were. */
    @Test(timeOut = 60_000)
    public void aNaNThatNoScaleRemovesEndsTheTraining() {
        LossScaling few = LossScaling.builder().optInitialScale(4).optLeastScale(1).build();
        TrainerKind kind = MESH_2X2.scaledBy(few);
        ScaledTraining training = adam((manager, step) -> data(manager, 0).mul(Float.NaN));
        Result before = training.run(kind, 0);
        Result after = training.run(kind, 9);
        assertEquals(after.leftOut, List.of(0, 1));
        assertTrue(after.end.getMessage().contains("loss scale of 1.0"), "" + after.end);
        assertFalse(after.hasUpdated);
        assertAllBitEqual(after.weights, before.weights, "parameter");
    }

    /** A block of the user's own that updates itself would keep the scale in its gradients. */
    @Test(timeOut = 60_000)
    public void aParticipantThatKnowsNoScale() {
        Block mean = new RunningMean(5);
        mean.setInitializer(Initializer.ONES, Parameter.Type.OTHER);
        TrainingRun.of(
                TENSOR_2.scaledBy(scaling(4, 2)),
                sequence(mean, linear(4)),
                config(),
                INPUT,
                (trainer, manager, numbers) -> {
                    TrainingRun.backward(trainer, data(manager, 0), labels(manager, 0));
                    Refusals.expect(
                            RuntimeException.class,
                            trainer::step,
                            "RunningMean",
                            "StepParticipant.unscale");
                });
    }

    @Test(timeOut = 60_000)
    public void weightsInFloat16() {
        try (Model model = Blocks.model(network())) {
            model.setDataType(DataType.FLOAT16);
            throwsArgument(
                    () -> TENSOR_2.scaledBy(scaling(4, 2)).open(model, config()),
                    "weights of net are float16");
        }
    }
}
