package io.djltp.conformance;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.testing.ArrayAssert;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.function.BiFunction;

/**
 * Random networks of cut layers on random meshes are those of plain DJL: the outputs, every
 * gradient (as what one step of SGD takes from the parameters), and the parameters after three
 * steps. The number of cases is {@code -Ddjltp.sweep.cases}, and {@code -Ddjltp.sweep.seed} runs
 * one of them alone. In float32: DJL's own trainer steps in no other type.
 */
public class RandomSweepTest {

    private static final int CASES = Integer.getInteger("djltp.sweep.cases", 300);
    private static final float RATE = 0.02f;
    private static final long ONLY = Long.getLong("djltp.sweep.seed", -1L);

    /** The kinds of networks: one class each. */
    private static final List<BiFunction<SplittableRandom, Integer, SweptNetwork>> KINDS =
            List.of(SweptLayers::draw, SweptMlp::draw, SweptHeads::draw);

    /** How a case is trained. */
    private record Case(
            long seed, SweptNetwork network, TrainerKind kind, int rows, int optimizer) {

        static Case of(long seed) {
            SplittableRandom random = new SplittableRandom(seed);
            int tensor = SweptNetwork.draw(random, 1, 8);
            int data = SweptNetwork.draw(random, 1, 8 / tensor);
            SweptNetwork network = KINDS.get(random.nextInt(KINDS.size())).apply(random, tensor);
            return new Case(
                    seed,
                    network,
                    TrainerKind.mesh(data, tensor),
                    SweptNetwork.draw(random, data, data + 4),
                    random.nextInt(3));
        }

        private Optimizer create() {
            Tracker rate = Tracker.fixed(RATE);
            return optimizer == 2
                    ? Optimizer.adam().optLearningRateTracker(rate).build()
                    : Optimizer.sgd()
                            .setLearningRateTracker(rate)
                            .optMomentum(optimizer == 1 ? 0.9f : 0)
                            .build();
        }
    }

    @Test(timeOut = 3_600_000)
    public void cutNetworksAreThoseOfPlainDjl() {
        long first = ONLY < 0 ? 0 : ONLY;
        long end = ONLY < 0 ? CASES : ONLY + 1;
        int refused = 0;
        for (long seed = first; seed < end; seed++) {
            Case drawn = Case.of(seed);
            try {
                refused += check(drawn) ? 0 : 1;
            } catch (RuntimeException | AssertionError e) {
                throw new AssertionError(
                        "Case -Ddjltp.sweep.seed=" + seed + ": " + drawn + ": " + e.getMessage(),
                        e);
            }
        }
        Assert.assertTrue(refused <= CASES / 100, refused + " cases that DJL does not train");
    }

    /** Returns whether the case could be compared: DJL's trainer takes gradients of 0 for none. */
    private static boolean check(Case drawn) {
        long elements = drawn.rows * drawn.network.outputs();
        // the loss is a mean: with this rate the step is the gradient of the sum
        Optimizer one =
                Optimizer.sgd().setLearningRateTracker(Tracker.fixed(0.5f * elements)).build();
        List<float[]> plain = trainPlain(drawn, one, 1);
        if (plain == null) {
            return false;
        }
        one = Optimizer.sgd().setLearningRateTracker(Tracker.fixed(0.5f * elements)).build();
        assertSame(train(drawn, drawn.kind, one, 1), plain, 1e-5, "with one step of SGD");
        plain = trainPlain(drawn, drawn.create(), 3);
        if (plain == null) {
            return false;
        }
        double tolerance = drawn.optimizer == 2 ? 1e-4 : 1e-5;
        assertSame(
                train(drawn, drawn.kind, drawn.create(), 3), plain, tolerance, "after three steps");
        return true;
    }

    /** Returns what DJL's trainer computes, or {@code null} if it refuses: no unit was active. */
    private static List<float[]> trainPlain(Case drawn, Optimizer optimizer, int steps) {
        try {
            return train(drawn, TrainerKind.PLAIN, optimizer, steps);
        } catch (IllegalStateException e) {
            if (e.getMessage().startsWith("Gradient values are all zeros")) {
                return null;
            }
            throw e;
        }
    }

    private static void assertSame(
            List<float[]> actual, List<float[]> expected, double tolerance, String what) {
        Assert.assertEquals(actual.size(), expected.size(), what);
        for (int i = 0; i < expected.size(); i++) {
            // a bias of nearly 0 is what is left of summands of the size of a step, RATE * errors:
            // a sum in another order loses relative to these
            double largest = 0;
            for (float value : expected.get(i)) {
                largest = Math.max(largest, Math.abs(value));
            }
            double allowed = tolerance * Math.max(1, RATE / Math.max(largest, 1e-30));
            ArrayAssert.assertClose(
                    actual.get(i), expected.get(i), allowed, "array " + i + " " + what);
        }
    }

    /** Returns the output of each step, and the parameters at the end. */
    private static List<float[]> train(
            Case drawn, TrainerKind kind, Optimizer optimizer, int steps) {
        List<float[]> arrays = new ArrayList<>();
        Engine.getInstance().setRandomSeed((int) drawn.seed);
        Block block = drawn.network.create(kind.isParallel());
        try (Model model = Model.newInstance("net", Device.cpu());
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(block);
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(new HalfSquareLoss())
                            .optOptimizer(optimizer)
                            .optDevices(new Device[] {Device.cpu()});
            try (Trainer trainer = kind.open(model, config)) {
                trainer.initialize(new Shape(drawn.rows, drawn.network.inputs()));
                for (int i = 0; i < steps; i++) {
                    NDArray data = random(drawn, manager, i, drawn.network.inputs());
                    NDArray labels = random(drawn, manager, 50 + i, drawn.network.outputs());
                    arrays.add(trainer.evaluate(new NDList(data)).head().toFloatArray());
                    backward(trainer, data, labels);
                    trainer.step();
                }
            }
            arrays.addAll(TrainingRun.weights(block));
        }
        return arrays;
    }

    private static NDArray random(Case drawn, NDManager manager, int number, long features) {
        long seed = 100 * drawn.seed + number;
        return TrainingRun.random(manager, seed, drawn.rows, features);
    }

    private static void backward(Trainer trainer, NDArray data, NDArray labels) {
        NDList target = new NDList(labels);
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDList output = trainer.forward(new NDList(data), target);
            collector.backward(trainer.getLoss().evaluate(target, output));
        }
    }
}
