package io.djltp.optimizer;

import static io.djltp.testing.TrainerKind.DATA_1;
import static io.djltp.testing.TrainerKind.PLAIN;

import static org.testng.Assert.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.ParameterTracker;
import ai.djl.training.tracker.Tracker;

import io.djltp.layout.ParallelMode;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.function.Supplier;

/**
 * Fifty steps of every optimizer on ranks are fifty steps of DJL's own trainer: weight decay,
 * limited gradients, schedules, and parameters that are frozen for a while.
 */
public class UpdatesEqualDjlTest {

    private static final int STEPS = 50;
    private static final double TOLERANCE = 1e-6;

    private final Map<String, List<float[]>> expected = new HashMap<>();

    private static final List<Function<Tracker, Optimizer>> OPTIMIZERS =
            List.of(
                    rate -> Optimizer.sgd().setLearningRateTracker(rate).build(),
                    rate -> {
                        var builder = Optimizer.sgd().optMomentum(0.9f);
                        builder.optWeightDecays(0.1f);
                        builder.optClipGrad(0.25f);
                        return builder.setLearningRateTracker(rate).build();
                    },
                    rate -> {
                        var builder = Optimizer.sgd();
                        builder.optClipGrad(0);
                        builder.setRescaleGrad(0.5f);
                        return builder.setLearningRateTracker(rate).build();
                    },
                    rate -> Optimizer.adam().optLearningRateTracker(rate).build(),
                    rate -> {
                        var builder = Optimizer.adam();
                        builder.optWeightDecays(0.1f);
                        builder.optClipGrad(0.5f);
                        builder.optBeginNumUpdate(5);
                        return builder.optLearningRateTracker(rate).build();
                    },
                    rate -> Optimizer.adamW().optLearningRateTracker(rate).build(),
                    rate -> RowwiseAdagrad.builder().optLearningRateTracker(rate).build(),
                    rate -> {
                        var builder = RowwiseAdagrad.builder();
                        builder.optWeightDecays(0.1f);
                        builder.optClipGrad(0.25f);
                        builder.setRescaleGrad(2);
                        return builder.optLearningRateTracker(rate).build();
                    });

    /** DJL's own trackers: one that keeps count of its factors, warm-up, and a cosine. */
    private static Tracker rate(int number) {
        return switch (number % 3) {
            case 0 ->
                    Tracker.multiFactor()
                            .setBaseValue(0.1f)
                            .setSteps(new int[] {7, 20, 31})
                            .optFactor(0.5f)
                            .build();
            case 1 ->
                    Tracker.warmUp()
                            .optWarmUpBeginValue(0)
                            .optWarmUpSteps(10)
                            .setMainTracker(Tracker.fixed(0.05f))
                            .build();
            default ->
                    Tracker.cosine()
                            .setBaseValue(0.1f)
                            .optFinalValue(0.01f)
                            .setMaxUpdates(40)
                            .build();
        };
    }

    @DataProvider
    public Object[][] cases() {
        List<Object[]> cases = new ArrayList<>();
        for (int number = 0; number < OPTIMIZERS.size(); number++) {
            int ranks = 1 + number % 4;
            for (ParallelMode mode : ParallelMode.values()) {
                for (int size : new int[] {ranks, 1 + (ranks + 1) % 4}) {
                    cases.add(new Object[] {number, new TrainerKind(mode, size)});
                }
            }
        }
        return cases.toArray(new Object[0][]);
    }

    @Test(dataProvider = "cases", timeOut = 60_000)
    public void columns(int number, TrainerKind kind) {
        assertSame(
                "columns" + number,
                number,
                kind,
                () ->
                        ColumnParallelLinear.builder()
                                .setUnits(Training.UNITS)
                                .optBatchShardedInput(true)
                                .optGatherOutput(true)
                                .build());
    }

    /** A row of the weight is cut: row-wise Adagrad has one number for all of it. */
    @Test(dataProvider = "cases", timeOut = 60_000)
    public void rowsThatAreCut(int number, TrainerKind kind) {
        if (kind.mode() == ParallelMode.MIXED) {
            return; // needs a layer before it
        }
        assertSame(
                "rows" + number,
                number,
                kind,
                () ->
                        RowParallelLinear.builder()
                                .setUnits(Training.UNITS)
                                .optInputIsParallel(false)
                                .build());
    }

    /** DJL's Adagrad throws on PyTorch: one rank, whose rule is tested against PyTorch's. */
    @Test(dataProvider = "adagrad", timeOut = 60_000)
    public void adagradOfRanksIsThatOfOne(ParallelMode mode, int ranks) {
        List<List<float[]>> runs = new ArrayList<>();
        for (TrainerKind kind : List.of(DATA_1, new TrainerKind(mode, ranks))) {
            Block block =
                    ColumnParallelLinear.builder()
                            .setUnits(Training.UNITS)
                            .optBatchShardedInput(true)
                            .optGatherOutput(true)
                            .build();
            Optimizer optimizer = Optimizer.adagrad().optLearningRateTracker(rate(0)).build();
            runs.add(Training.run(kind, block, optimizer, STEPS, (trainer, step) -> {}));
        }
        Training.assertSame(runs.get(1), runs.get(0), TOLERANCE);
    }

    @DataProvider
    public Object[][] adagrad() {
        return new Object[][] {
            {ParallelMode.TENSOR, 3}, {ParallelMode.DATA, 2}, {ParallelMode.MIXED, 3}
        };
    }

    private void assertSame(String name, int number, TrainerKind kind, Supplier<Block> block) {
        List<float[]> ofDjl =
                expected.computeIfAbsent(
                        name, key -> train(PLAIN, Training.inOrder(block), number));
        Training.assertSame(train(kind, block.get(), number), ofDjl, TOLERANCE);
    }

    private static List<float[]> train(TrainerKind kind, Block block, int number) {
        return Training.run(
                kind,
                block,
                OPTIMIZERS.get(number).apply(rate(number)),
                STEPS,
                (trainer, step) -> {
                    // the bias, from the first step or in between: momentum and means wait
                    boolean frozen = number % 2 == 0 ? step < 5 : step >= 9 && step < 14;
                    block.getParameters().valueAt(1).freeze(frozen);
                });
    }

    /** By hand: the state of a row is the mean over the row, on any number of ranks. */
    @Test
    public void rowwiseAdagradByHandUnderDjl() {
        ParameterTracker rate = Tracker.fixed(0.5f);
        RowwiseAdagrad optimizer =
                RowwiseAdagrad.builder().optLearningRateTracker(rate).optEpsilon(0).build();
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray weight = manager.zeros(new Shape(2, 2), DataType.FLOAT32);
            for (int step = 0; step < 2; step++) {
                NDArray gradient = manager.create(new float[] {1, 7, 0, 4}, new Shape(2, 2));
                optimizer.update("weight", weight, gradient);
            }
            // means of squares 25 and 8: a half of 1/5, 7/5, and of 1/sqrt(50), 7/sqrt(50)
            double factor = -0.5 * (1 / 5.0 + 1 / Math.sqrt(50));
            double other = -0.5 * (4 / Math.sqrt(8) + 4 / Math.sqrt(16));
            float[] values = weight.toFloatArray();
            assertEquals(values[0], factor, 1e-6);
            assertEquals(values[1], 7 * factor, 1e-6);
            assertEquals(values[2], 0f);
            assertEquals(values[3], other, 1e-6);
        }
    }
}
