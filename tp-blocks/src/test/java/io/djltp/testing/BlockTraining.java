package io.djltp.testing;

import static io.djltp.testing.TrainerKind.PLAIN;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.util.Pair;

import io.djltp.collective.CollectiveCounts;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
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
        private final Map<String, float[]> before = new LinkedHashMap<>();
        private final Map<String, float[]> after = new LinkedHashMap<>();
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
            for (String name : expected.after.keySet()) {
                largest = Math.max(largest, size(moves(expected, name)));
            }
            for (String name : expected.after.keySet()) {
                ArrayAssert.assertBitEqual(
                        actual.before.get(name), expected.before.get(name), what + name);
                boolean skipped = ignored != null && name.endsWith(ignored);
                if (steps == 1) {
                    float[] moved = moves(expected, name);
                    // a gradient that cancels out is compared with what it is the sum of
                    double relative = tolerance * Math.max(1, 0.01 * largest / size(moved));
                    ArrayAssert.assertClose(
                            moves(actual, name), moved, relative, what + "gradient of " + name);
                } else if (!skipped) {
                    ArrayAssert.assertClose(
                            actual.after.get(name),
                            expected.after.get(name),
                            tolerance,
                            what + name);
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

    private static float[] moves(Result result, String name) {
        float[] before = result.before.get(name);
        float[] moves = result.after.get(name).clone();
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
        Engine.getInstance().setRandomSeed(42);
        try (Model model = Model.newInstance("net", Device.cpu());
                NDManager manager = NDManager.newBaseManager()) {
            Block net = block.get();
            net.setInitializer(new NormalInitializer(0.4f), parameter -> true);
            model.setBlock(net);
            DefaultTrainingConfig config = Configs.of(new HalfSquareLoss(), optimizer);
            NDList[] first = batches.make(manager, 0);
            net.initialize(
                    model.getNDManager(), first[0].head().getDataType(), first[0].getShapes());
            read(net, result.before);
            try (Trainer trainer = kind.open(model, config)) {
                trainer.initialize(first[0].getShapes());
                for (int step = 0; step < steps; step++) {
                    step(trainer, batches.make(manager, step), result);
                }
            }
            read(net, result.after);
        }
        return result;
    }

    private static void step(Trainer trainer, NDList[] batch, Result result) {
        CollectiveCounts start = counts(trainer);
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDList output = trainer.forward(batch[0], batch[1]);
            NDArray loss = trainer.getLoss().evaluate(batch[1], output);
            CollectiveCounts middle = counts(trainer);
            collector.backward(loss);
            if (result.output == null) {
                result.output = output.singletonOrThrow().toFloatArray();
            }
            if (start != null) {
                result.forward = middle.minus(start);
                result.backward = counts(trainer).minus(middle);
            }
        }
        trainer.step();
    }

    private static CollectiveCounts counts(Trainer trainer) {
        return trainer instanceof ParallelTrainer
                ? ((ParallelTrainer) trainer).getCollectiveCounts()
                : null;
    }

    private static void read(Block net, Map<String, float[]> values) {
        for (Pair<String, Parameter> named : net.getParameters()) {
            values.put(named.getKey(), named.getValue().getArray().toFloatArray());
        }
    }
}
