package io.djltp.checkpoint;

import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.layout.ParallelMode;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.optimizer.LossScale;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.rank.LossScaling;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;

/** A training that is stopped and goes on from its checkpoint, with each optimizer. */
public class ResumedOptimizersTest {

    private static final int STEPS = 5;

    private static final Tracker RATE = Tracker.fixed(0.05f);

    private static final Map<String, Supplier<Optimizer>> OPTIMIZERS = new LinkedHashMap<>();

    static {
        OPTIMIZERS.put("sgd", () -> Optimizer.sgd().setLearningRateTracker(RATE).build());
        OPTIMIZERS.put(
                "momentum",
                () -> Optimizer.sgd().setLearningRateTracker(RATE).optMomentum(0.9f).build());
        OPTIMIZERS.put("adam", () -> Optimizer.adam().optLearningRateTracker(RATE).build());
        OPTIMIZERS.put(
                "adamw",
                () ->
                        Optimizer.adamW()
                                .optLearningRateTracker(RATE)
                                .optWeightDecays(0.01f)
                                .build());
        OPTIMIZERS.put("adagrad", () -> Optimizer.adagrad().optLearningRateTracker(RATE).build());
        OPTIMIZERS.put(
                "row-wise", () -> RowwiseAdagrad.builder().optLearningRateTracker(RATE).build());
    }

    /** A body, a layer that is cut by its outputs and one that is cut by its inputs. */
    static Block network() {
        return new SequentialBlock()
                .add(Linear.builder().setUnits(6).build())
                .add(Activation.tanhBlock())
                .add(ColumnParallelLinear.builder().setUnits(9).optBatchShardedInput(true).build())
                .add(Activation.tanhBlock())
                .add(RowParallelLinear.builder().setUnits(4).build());
    }

    static StoppedRun.Task task(Supplier<Optimizer> optimizer) {
        return new StoppedRun.Task(
                ResumedOptimizersTest::network,
                Loss::l2Loss,
                optimizer,
                (manager, step) -> TrainingRun.random(manager, step, 7, 5),
                (manager, step) -> TrainingRun.random(manager, 50 + step, 7, 4));
    }

    @DataProvider
    public Object[][] optimizers() {
        return OPTIMIZERS.keySet().stream()
                .map(name -> new Object[] {name})
                .toArray(Object[][]::new);
    }

    @Test(dataProvider = "optimizers", timeOut = 60_000)
    public void theBitsAreThoseOfARunThatWasNotStopped(String name) {
        assertSameBits(new TrainerKind(ParallelMode.MIXED, 3), task(OPTIMIZERS.get(name)), name);
    }

    @DataProvider
    public Object[][] kinds() {
        return new Object[][] {
            {new TrainerKind(ParallelMode.TENSOR, 1)},
            {new TrainerKind(ParallelMode.TENSOR, 2)},
            {new TrainerKind(ParallelMode.DATA, 3)},
            {new TrainerKind(ParallelMode.MIXED, 4)},
            {TrainerKind.mesh(2, 2)},
            {TrainerKind.mesh(2, 3)}
        };
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void onAllMeshes(TrainerKind kind) {
        assertSameBits(kind, task(OPTIMIZERS.get("adam")), "" + kind);
    }

    private static void assertSameBits(TrainerKind kind, StoppedRun.Task task, String what) {
        StoppedRun whole = StoppedRun.whole(kind, task, STEPS);
        StoppedRun.inFolder(
                folder -> {
                    StoppedRun.saved(kind, task, List.of(1, 3), folder).assertBeginningOf(whole);
                    for (int stop : new int[] {1, 3}) {
                        StoppedRun.resumed(kind, task, stop, STEPS, folder)
                                .assertEndOf(whole, what + " after " + stop);
                    }
                });
    }

    /**
     * The scale of the loss and what it has counted go on too. Its factors are no powers of 2: with
     * another scale the bits of the weights are others.
     */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void theScaleOfTheLossGoesOn(TrainerKind kind) {
        LossScaling scaling =
                LossScaling.builder()
                        .optInitialScale(1000)
                        .optGrowthFactor(1.7f)
                        .optBackoffFactor(0.3f)
                        .optGrowthInterval(2)
                        .build();
        StoppedRun.Task adam = task(OPTIMIZERS.get("adam"));
        StoppedRun.Task task =
                new StoppedRun.Task(
                        adam.network(),
                        adam.loss(),
                        adam.optimizer(),
                        (manager, step) ->
                                step == 1
                                        ? adam.data().make(manager, step).mul(Float.NaN)
                                        : adam.data().make(manager, step),
                        adam.labels());
        assertSameBits(kind.scaledBy(scaling), task, "" + kind);
        StoppedRun.inFolder(
                folder -> {
                    StoppedRun.saved(kind.scaledBy(scaling), task, List.of(3), folder);
                    StoppedRun.run(
                            kind.scaledBy(scaling),
                            task,
                            7,
                            3,
                            STEPS,
                            (trainer, state, step) -> {
                                LossScale scale = trainer.getState().getLossScale();
                                if (step == 3) {
                                    StoppedRun.restore(state, folder, 3);
                                    // a good step, a bad one, a good one
                                    Assert.assertEquals(
                                            scale.getState(),
                                            new LossScale.State(1000 * 0.3f, 1, 1));
                                }
                            });
                });
    }

    @DataProvider
    public Object[][] moves() {
        return new Object[][] {
            {new TrainerKind(ParallelMode.TENSOR, 2), new TrainerKind(ParallelMode.TENSOR, 4)},
            {new TrainerKind(ParallelMode.TENSOR, 4), new TrainerKind(ParallelMode.TENSOR, 3)},
            {new TrainerKind(ParallelMode.TENSOR, 1), new TrainerKind(ParallelMode.TENSOR, 4)},
            {TrainerKind.mesh(2, 2), new TrainerKind(ParallelMode.TENSOR, 3)},
            {new TrainerKind(ParallelMode.TENSOR, 3), new TrainerKind(ParallelMode.DATA, 2)},
            {new TrainerKind(ParallelMode.DATA, 3), new TrainerKind(ParallelMode.MIXED, 2)},
            {new TrainerKind(ParallelMode.MIXED, 4), TrainerKind.mesh(2, 2)}
        };
    }

    /** One number for each row, of a layer that is cut by columns, is on all ranks. */
    @Test(dataProvider = "moves", timeOut = 60_000)
    public void atAnotherSizeItIsTheSameTraining(TrainerKind from, TrainerKind to) {
        for (String name : List.of("momentum", "adam", "row-wise")) {
            StoppedRun.Task task = task(OPTIMIZERS.get(name));
            StoppedRun whole = StoppedRun.whole(from, task, STEPS);
            StoppedRun.inFolder(
                    folder -> {
                        StoppedRun.saved(from, task, List.of(2), folder);
                        double tolerance = name.equals("adam") ? 1e-4 : 1e-5;
                        StoppedRun.resumed(to, task, 2, STEPS, folder)
                                .assertCloseToEndOf(whole, tolerance, name);
                    });
        }
    }
}
