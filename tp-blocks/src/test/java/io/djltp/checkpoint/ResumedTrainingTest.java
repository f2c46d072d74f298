package io.djltp.checkpoint;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_1;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MESH_2X3;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.MIXED_4;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;

import ai.djl.nn.norm.Dropout;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.checkpoint.StoppedRun.Task;
import io.djltp.internal.optimizer.LossScale;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.rank.LossScaling;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;

/** A training that is stopped and goes on from its checkpoint, of each optimizer and block. */
public class ResumedTrainingTest {

    private static final TrainerKind MIXED = MIXED_3;
    private static final int STEPS = 6;

    private static final Map<String, Supplier<Optimizer>> OPTIMIZERS = new LinkedHashMap<>();

    static {
        OPTIMIZERS.put("sgd", () -> Configs.sgd(0.05f));
        OPTIMIZERS.put("momentum", () -> Configs.sgd(0.05f, 0.9f));
        OPTIMIZERS.put("adam", () -> Configs.adam(0.05f));
        OPTIMIZERS.put(
                "adamw",
                () ->
                        Optimizer.adamW()
                                .optLearningRateTracker(rate())
                                .optWeightDecays(0.01f)
                                .optBeginNumUpdate(4)
                                .build());
        OPTIMIZERS.put("adagrad", () -> Optimizer.adagrad().optLearningRateTracker(rate()).build());
        OPTIMIZERS.put(
                "row-wise", () -> RowwiseAdagrad.builder().optLearningRateTracker(rate()).build());
    }

    /** Rates that differ from step to step: the counts of the steps show. */
    private static Tracker rate() {
        return Tracker.multiFactor()
                .setBaseValue(0.05f)
                .setSteps(new int[] {2, 4, 8})
                .optFactor(0.7f)
                .build();
    }

    /** A body, a layer that is cut by its outputs and one that is cut by its inputs. */
    private static Task task(String optimizer) {
        return new Task(
                () -> sequence(linear(6), tanh(), head(9), tanh(), row(true, 4)),
                Loss::l2Loss,
                OPTIMIZERS.get(optimizer),
                (manager, step) -> TrainingRun.random(manager, step, 7, 5),
                (manager, step) -> TrainingRun.random(manager, 50 + step, 7, 4));
    }

    /** A name, what is trained and on which ranks; the bits are those of a run without a stop. */
    @DataProvider
    public Object[][] trainings() {
        List<Object[]> cases = new ArrayList<>();
        OPTIMIZERS.keySet().forEach(name -> cases.add(new Object[] {name, task(name), MIXED}));
        for (TrainerKind kind : kinds()) {
            cases.add(new Object[] {"adam", task("adam"), kind});
        }
        for (ResumedTasks each : ResumedTasks.values()) {
            for (TrainerKind kind : List.of(TENSOR_2, MIXED, MESH_2X2.sharded())) {
                cases.add(new Object[] {"" + each, each.task(), kind});
            }
        }
        // DJL's own dropout draws from libtorch's generator of the process
        Task dropout =
                new Task(
                        () ->
                                sequence(
                                        linear(6),
                                        Dropout.builder().optRate(0.4f).build(),
                                        linear(4)),
                        Loss::l2Loss,
                        OPTIMIZERS.get("sgd"),
                        task("sgd").data(),
                        task("sgd").labels());
        cases.add(new Object[] {"dropout", dropout, DATA_1});
        return cases.toArray(new Object[0][]);
    }

    private static List<TrainerKind> kinds() {
        return List.of(TENSOR_1, TENSOR_2, DATA_3, MIXED_4.sharded(), MESH_2X2, MESH_2X3.sharded());
    }

    @Test(dataProvider = "trainings", timeOut = 60_000)
    public void theBitsAreThoseOfARunThatWasNotStopped(String name, Task task, TrainerKind kind) {
        StoppedRun.assertResumes(kind, task, STEPS, 1, 4);
    }

    @DataProvider
    public Object[][] accumulated() {
        return new Object[][] {
            {ResumedTasks.MARGIN_HEAD, TENSOR_2, 2},
            {ResumedTasks.EXPERTS, MESH_2X2, 2},
            {ResumedTasks.BATCH_NORMS, MIXED.clippedTo(0.05f).sharded(), 1},
            {ResumedTasks.EXPERTS, MESH_2X2.clippedTo(0.05f), 2}
        };
    }

    /** The gradients of two batches are added up in a step, or their norm is limited, or both. */
    @Test(dataProvider = "accumulated", timeOut = 60_000)
    public void ofMicroBatchesAndClippedGradients(ResumedTasks of, TrainerKind kind, int batches) {
        Task task = of.task().inMicroBatches(batches);
        Assert.assertNotEquals(
                StoppedRun.assertResumes(kind, task, STEPS, 3).losses,
                StoppedRun.whole(kind.clippedTo(0), of.task(), STEPS).losses,
                "neither has an effect");
    }

    @DataProvider
    public Object[][] scaled() {
        return kinds().stream().map(kind -> new Object[] {kind}).toArray(Object[][]::new);
    }

    /**
     * The scale of the loss and what it has counted go on too. Its factors are no powers of 2: with
     * another scale the bits of the weights are others.
     */
    @Test(dataProvider = "scaled", timeOut = 60_000)
    public void theScaleOfTheLossGoesOn(TrainerKind kind) {
        TrainerKind scaled =
                kind.scaledBy(
                        LossScaling.builder()
                                .optInitialScale(1000)
                                .optGrowthFactor(1.7f)
                                .optBackoffFactor(0.3f)
                                .optGrowthInterval(2)
                                .build());
        Task adam = task("adam");
        Task task =
                new Task(
                        adam.network(),
                        adam.loss(),
                        adam.optimizer(),
                        (manager, step) ->
                                adam.data().make(manager, step).mul(step == 1 ? Float.NaN : 1),
                        adam.labels());
        StoppedRun.assertResumes(scaled, task, STEPS, 1, 3);
        StoppedRun.inFolder(
                folder -> {
                    StoppedRun.saved(scaled, task, List.of(3), folder);
                    StoppedRun.run(
                            scaled,
                            task,
                            7,
                            3,
                            4,
                            (trainer, state, step) -> {
                                StoppedRun.restore(state, folder, 3);
                                Assert.assertEquals( // a good step, a bad one, a good one
                                        trainer.getState().getLossScale().getState(),
                                        new LossScale.State(1000 * 0.3f, 1, 1));
                            });
                });
    }

    /** What is trained, on which ranks and then on which others, and the tolerance. */
    @DataProvider
    public Object[][] moves() {
        List<Object[]> cases = new ArrayList<>();
        TrainerKind[][] moves = {
            {TENSOR_2, TENSOR_4},
            {TENSOR_4, TENSOR_3},
            {TENSOR_1, TENSOR_4},
            {MESH_2X2, TENSOR_3},
            {TENSOR_3, DATA_2},
            {DATA_3, MIXED_2},
            {MIXED_4, MESH_2X2}
        };
        for (TrainerKind[] move : moves) { // row-wise: a number a row is on all ranks
            for (String name : List.of("momentum", "adam", "row-wise")) {
                double tolerance = name.equals("adam") ? 1e-4 : 1e-5;
                cases.add(new Object[] {name, task(name), move[0], move[1], tolerance});
            }
        }
        for (ResumedTasks each : ResumedTasks.values()) {
            for (TrainerKind to : Arrays.asList(TENSOR_4, DATA_1)) {
                cases.add(new Object[] {"" + each, each.task(), TENSOR_2, to, 1e-4});
            }
        }
        return cases.toArray(new Object[0][]);
    }

    @Test(dataProvider = "moves", timeOut = 60_000)
    public void atAnotherSizeItIsTheSameTraining(
            String name, Task task, TrainerKind from, TrainerKind to, double tolerance) {
        StoppedRun whole = StoppedRun.whole(from, task, STEPS);
        StoppedRun.inFolder(
                folder -> {
                    StoppedRun.saved(from, task, List.of(3), folder);
                    StoppedRun.resumed(to, task, 3, STEPS, folder)
                            .assertCloseToEndOf(whole, tolerance, name);
                });
    }
}
