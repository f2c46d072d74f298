package io.djltp.testing;

import static io.djltp.testing.TrainerKind.PLAIN;

import ai.djl.Device;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.collective.CollectiveCounts;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;

import java.util.Arrays;
import java.util.List;
import java.util.function.Supplier;

/**
 * A network under DJL's own trainer and under parallel ones: outputs, all gradients, and all
 * parameters after three steps are the same.
 *
 * @param block makes the network, which is unsharded under DJL's own trainer
 * @param batches the batch of each step
 * @param ignored the end of the names of parameters that have no effect, so that their gradients
 *     are rounding errors, such as the bias of keys; Adam makes steps of them. Or {@code null}
 */
public record BlockTraining(Supplier<Block> block, Network.Batches batches, String ignored) {

    private static final double TOLERANCE = 1e-5;
    private static final double ADAM_TOLERANCE = 1e-4;
    // a step of this length is the gradient: the weight is lost in it
    private static final float LONG_STEP = 1 << 14;

    /** What a training has computed. */
    private static final class Result {
        private List<String> names;
        private List<float[]> before;
        private List<float[]> after;
        private float[] output;
        private CollectiveCounts forward;
        private CollectiveCounts backward;
    }

    /**
     * Asserts that trainers compute what DJL's own computes.
     *
     * @param kinds the trainers
     */
    public void assertEqual(TrainerKind... kinds) {
        assertEqualTo(PLAIN, kinds);
    }

    /**
     * Asserts that trainers compute what another one computes.
     *
     * @param reference the other one
     * @param kinds the trainers
     */
    public void assertEqualTo(TrainerKind reference, TrainerKind... kinds) {
        Tracker rate = Tracker.fixed(0.1f);
        Supplier<Optimizer> gradient = () -> Configs.sgd(LONG_STEP);
        Supplier<Optimizer> sgd = () -> Optimizer.sgd().setLearningRateTracker(rate).build();
        Supplier<Optimizer> adam = () -> Configs.adam(0.01f);
        compare(gradient, 1, TOLERANCE, reference, kinds);
        // of a rule without state, what the gradients do not tell, the last two trainers tell
        TrainerKind[] last = Arrays.copyOfRange(kinds, Math.max(0, kinds.length - 2), kinds.length);
        compare(sgd, 3, TOLERANCE, reference, last);
        compare(adam, 3, ADAM_TOLERANCE, reference, kinds);
    }

    private void compare(
            Supplier<Optimizer> optimizer,
            int steps,
            double tolerance,
            TrainerKind reference,
            TrainerKind... kinds) {
        Result expected = run(reference, optimizer.get(), steps);
        for (TrainerKind kind : kinds) {
            Result actual = run(kind, optimizer.get(), steps);
            String what = kind + ", " + steps + " steps of " + optimizer.get().getClass() + ": ";
            ArrayAssert.assertClose(
                    actual.output, expected.output, TOLERANCE, what + "first output");
            double largest = 0;
            for (int i = 0; i < expected.after.size(); i++) {
                largest = Math.max(largest, size(moves(expected, i)));
            }
            ArrayAssert.assertAllBitEqual(actual.before, expected.before, what + "start");
            for (int i = 0; i < expected.after.size(); i++) {
                String name = expected.names.get(i);
                boolean skipped = ignored != null && name.endsWith(ignored);
                if (steps == 1) {
                    float[] moved = moves(expected, i);
                    // a gradient that cancels out is compared with what it is the sum of
                    double relative = tolerance * Math.max(1, 0.01 * largest / size(moved));
                    ArrayAssert.assertClose(
                            moves(actual, i), moved, relative, what + "gradient of " + name);
                } else if (!skipped) {
                    ArrayAssert.assertClose(
                            actual.after.get(i), expected.after.get(i), tolerance, what + name);
                }
            }
        }
    }

    /**
     * Asserts what a trainer communicates in one forward and one backward pass.
     *
     * @param kind the trainer
     * @param forward the counts of the forward pass
     * @param backward those of the backward pass
     */
    public void assertCounts(TrainerKind kind, String forward, String backward) {
        Optimizer sgd = Configs.sgd(0.1f);
        Result result = run(kind, sgd, 3);
        Assert.assertEquals(result.forward.toString(), forward, kind + ", forward");
        Assert.assertEquals(result.backward.toString(), backward, kind + ", backward");
    }

    private static float[] moves(Result result, int index) {
        float[] before = result.before.get(index);
        float[] moves = result.after.get(index).clone();
        for (int i = 0; i < moves.length; i++) {
            moves[i] -= before[i];
        }
        return moves;
    }

    private static double size(float[] values) {
        double largest = 1e-30;
        for (float value : values) {
            largest = Math.max(largest, Math.abs(value));
        }
        return largest;
    }

    private Result run(TrainerKind kind, Optimizer optimizer, int steps) {
        Result result = new Result();
        Block net = block.get();
        net.setInitializer(new NormalInitializer(0.4f), parameter -> true);
        Engine.getInstance().setRandomSeed(42);
        try (NDManager owner = NDManager.newBaseManager(Device.cpu())) {
            NDList data = batches.make(owner, 0)[0];
            net.initialize(owner, data.head().getDataType(), data.getShapes());
            result.names = net.getParameters().keys();
            result.before = TrainingRun.weights(net);
            TrainingRun run =
                    TrainingRun.of(
                            kind,
                            net,
                            Configs.of(new HalfSquareLoss(), optimizer),
                            data.getShapes(),
                            (trainer, manager, numbers) -> {
                                for (int step = 0; step < steps; step++) {
                                    step(trainer, batches.make(manager, step), result);
                                }
                            });
            result.after = run.getWeights();
        }
        return result;
    }

    private static void step(Trainer trainer, NDList[] batch, Result result) {
        CollectiveCounts start = counts(trainer);
        TrainingRun.backward(
                trainer,
                batch[0],
                batch[1],
                output -> {
                    if (result.output == null) {
                        result.output = output.singletonOrThrow().toFloatArray();
                    }
                    result.forward = start == null ? null : counts(trainer).minus(start);
                });
        if (start != null) {
            result.backward = counts(trainer).minus(start).minus(result.forward);
        }
        trainer.step();
    }

    private static CollectiveCounts counts(Trainer trainer) {
        return trainer instanceof ParallelTrainer
                ? ((ParallelTrainer) trainer).getCollectiveCounts()
                : null;
    }
}
