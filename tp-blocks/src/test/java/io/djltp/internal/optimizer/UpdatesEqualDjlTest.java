package io.djltp.internal.optimizer;

import static io.djltp.testing.ArrayAssert.assertAllClose;
import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.TrainerKind.DATA_1;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_3;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.expectThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.optimizer.Sgd;
import ai.djl.training.tracker.Tracker;

import io.djltp.nn.RowParallelLinear;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.RankThreads;
import io.djltp.testing.RecordedTest;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

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
 * limited gradients, schedules, and parameters that are frozen for a while. An optimizer whose rule
 * is not known throws before a rank is started.
 */
public class UpdatesEqualDjlTest extends RecordedTest {

    private static final int STEPS = 50;
    private static final double TOLERANCE = 1e-6;

    private final Map<String, TrainingRun> expected = new HashMap<>();

    private static final List<Function<Tracker, Optimizer>> OPTIMIZERS =
            List.of(
                    rate -> sgd(rate).build(),
                    rate ->
                            sgd(rate)
                                    .optMomentum(0.9f)
                                    .optWeightDecays(0.1f)
                                    .optClipGrad(0.25f)
                                    .build(),
                    rate -> sgd(rate).optClipGrad(0).setRescaleGrad(0.5f).build(),
                    rate -> Optimizer.adam().optLearningRateTracker(rate).build(),
                    rate ->
                            Optimizer.adam()
                                    .optLearningRateTracker(rate)
                                    .optWeightDecays(0.1f)
                                    .optClipGrad(0.5f)
                                    .optBeginNumUpdate(5)
                                    .build(),
                    rate -> Optimizer.adamW().optLearningRateTracker(rate).build(),
                    rate -> rowwise(rate).build(),
                    rate ->
                            rowwise(rate)
                                    .optWeightDecays(0.1f)
                                    .optClipGrad(0.25f)
                                    .setRescaleGrad(2)
                                    .build());

    private static Sgd.Builder sgd(Tracker rate) {
        return Optimizer.sgd().setLearningRateTracker(rate);
    }

    private static RowwiseAdagrad.Builder rowwise(Tracker rate) {
        return RowwiseAdagrad.builder().optLearningRateTracker(rate);
    }

    /** DJL's own trackers: one that keeps count of its factors, warm-up, and a cosine. */
    private static Tracker rate(int number) {
        int[] steps = {7, 20, 31};
        return switch (number % 3) {
            case 0 ->
                    Tracker.multiFactor()
                            .setBaseValue(0.1f)
                            .setSteps(steps)
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
            for (TrainerKind kind : TrainerKind.all(ranks, 1 + (ranks + 1) % 4)) {
                cases.add(new Object[] {number, kind});
            }
        }
        return cases.toArray(new Object[0][]);
    }

    @Test(dataProvider = "cases", timeOut = 60_000)
    public void columns(int number, TrainerKind kind) {
        assertSame("columns" + number, number, kind, () -> gathered(Training.UNITS));
    }

    /** A row of the weight is cut: row-wise Adagrad has one number for all of it. */
    @Test(dataProvider = "cases", timeOut = 60_000)
    public void rowsThatAreCut(int number, TrainerKind kind) {
        RowParallelLinear.Builder row = RowParallelLinear.builder().setUnits(Training.UNITS);
        if (kind.mode() != ParallelMode.MIXED) { // which needs a layer before it
            assertSame("rows" + number, number, kind, row.optInputIsParallel(false)::build);
        }
    }

    private void assertSame(String name, int number, TrainerKind kind, Supplier<Block> block) {
        TrainingRun ofDjl =
                expected.computeIfAbsent(
                        name, key -> train(PLAIN, Training.inOrder(block), number));
        TrainingRun own = train(kind, block.get(), number);
        assertAllClose(own.getWeights(), ofDjl.getWeights(), TOLERANCE, "parameter");
    }

    private static TrainingRun train(TrainerKind kind, Block block, int number) {
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

    /** DJL's Adagrad throws on PyTorch: one rank, whose rule is tested against PyTorch's. */
    @Test(timeOut = 60_000)
    public void adagradOfRanksIsThatOfOne() {
        TrainingRun one = adagrad(DATA_1);
        for (TrainerKind kind : List.of(TENSOR_3, DATA_2, MIXED_3)) {
            adagrad(kind).assertSame(one, TOLERANCE);
        }
    }

    private static TrainingRun adagrad(TrainerKind kind) {
        Optimizer optimizer = Optimizer.adagrad().optLearningRateTracker(rate(0)).build();
        return Training.run(kind, gathered(Training.UNITS), optimizer, STEPS);
    }

    /** By hand: the state of a row is the mean over the row, on any number of ranks. */
    @Test
    public void rowwiseAdagradByHandUnderDjl() {
        RowwiseAdagrad optimizer = rowwise(Tracker.fixed(0.5f)).optEpsilon(0).build();
        NDArray weight = manager.zeros(new Shape(2, 2), DataType.FLOAT32);
        for (int step = 0; step < 2; step++) {
            NDArray gradient = manager.create(new float[] {1, 7, 0, 4}, new Shape(2, 2));
            optimizer.update("weight", weight, gradient);
        }
        // means of squares 25 and 8: a half of 1/5, 7/5, and of 1/sqrt(50), 7/sqrt(50)
        float factor = (float) (-0.5 * (1 / 5.0 + 1 / Math.sqrt(50)));
        float other = (float) (-0.5 * (4 / Math.sqrt(8) + 4 / Math.sqrt(16)));
        float[] values = {factor, 7 * factor, 0, other};
        assertEquals(weight.toFloatArray(), values, 1e-6f);
    }

    /** What the guide says of DJL's limit of a gradient's elements: it is one from above only. */
    @Test(timeOut = 60_000)
    public void djlLimitsFromAboveOnly() {
        Optimizer sgd = sgd(Tracker.fixed(1)).optClipGrad(0.25f).build();
        NDArray weight = manager.zeros(new Shape(2));
        sgd.update("w", weight, manager.create(new float[] {1, -1}));
        assertEquals(weight.toFloatArray(), new float[] {-0.25f, 1});
    }

    /** May do anything in its update. */
    private static final class OwnSgd extends Sgd {
        OwnSgd() {
            super(UpdatesEqualDjlTest.sgd(Tracker.fixed(1f)));
        }
    }

    @DataProvider
    public Object[][] unknown() {
        String djls = "ai.djl.training.optimizer.";
        Tracker one = Tracker.fixed(1f);
        return new Object[][] {
            {new OwnSgd(), "io.djltp.internal.optimizer.UpdatesEqualDjlTest$OwnSgd"},
            {Optimizer.nag().setLearningRateTracker(one).setMomentum(0.5f).build(), djls + "Nag"},
            {Optimizer.adadelta().build(), djls + "Adadelta"},
            {Optimizer.rmsprop().build(), djls + "RmsProp"}
        };
    }

    @Test(dataProvider = "unknown", timeOut = 60_000)
    public void anUnknownRule(Optimizer optimizer, String name) throws InterruptedException {
        RankThreads threads = new RankThreads();
        String expected =
                "Parameters are updated by Sgd, Adam, AdamW, Adagrad or RowwiseAdagrad, but"
                        + " the optimizer is a "
                        + name
                        + "; subclasses are not supported either";
        String message =
                expectThrows(
                                UnsupportedOperationException.class,
                                () -> Training.run(DATA_2, linear(2), optimizer, 1))
                        .getMessage();
        assertEquals(message, expected);
        threads.assertCount(0);
    }
}
