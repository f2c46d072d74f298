package io.djltp.plan;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Network.Batches;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;

import java.util.ArrayList;
import java.util.List;

/**
 * What three steps of training have made of a network.
 *
 * @param losses the loss of each step
 * @param outputs what it makes of a batch then; null where an output is left cut
 * @param weights the parameters after them
 */
record PlanTraining(float[] losses, List<float[]> outputs, List<float[]> weights) {

    private static final int STEPS = 3;

    /** Trains by SGD at a small rate, from what a fixed seed gives. */
    static PlanTraining of(TrainerKind kind, Block block, Batches batches) {
        return of(kind, block, batches, 0.01f);
    }

    /** Trains by SGD at a rate of one's own. */
    static PlanTraining of(TrainerKind kind, Block block, Batches batches, float rate) {
        return of(kind, block, batches, config(rate));
    }

    /** Trains from what a fixed seed gives. */
    static PlanTraining of(
            TrainerKind kind, Block block, Batches batches, TrainingConfig configuration) {
        float[] losses = new float[STEPS];
        List<float[]> outputs = new ArrayList<>();
        Engine.getInstance().setRandomSeed(42);
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(block);
            try (Trainer trainer = kind.open(model, configuration)) {
                trainer.initialize(batches.make(manager, 0)[0].getShapes());
                for (int i = 0; i < STEPS; i++) {
                    losses[i] = step(trainer, batches.make(manager, i));
                }
                for (NDArray output : trainer.evaluate(batches.make(manager, STEPS)[0])) {
                    boolean cut = output.toString().contains("cut over the ranks");
                    outputs.add(cut ? null : ArrayAssert.floats(output));
                }
            }
            return new PlanTraining(losses, outputs, TrainingRun.weights(block));
        }
    }

    /** Returns a configuration for class numbers. */
    static DefaultTrainingConfig config(float rate) {
        return config(
                Loss.softmaxCrossEntropyLoss(),
                Optimizer.sgd().setLearningRateTracker(Tracker.fixed(rate)).build());
    }

    /** Returns a configuration. */
    static DefaultTrainingConfig config(Loss loss, Optimizer optimizer) {
        return new DefaultTrainingConfig(loss)
                .optOptimizer(optimizer)
                .optDevices(new Device[] {Device.cpu()});
    }

    /** Makes a step, and returns its loss. */
    static float step(Trainer trainer, NDList[] batch) {
        float value;
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDList output = trainer.forward(batch[0], batch[1]);
            NDArray loss = trainer.getLoss().evaluate(batch[1], output);
            collector.backward(loss);
            value = loss.getFloat();
        }
        trainer.step();
        return value;
    }

    /** Asserts that two trainings have the same result. */
    void assertSame(String kind, PlanTraining expected, double tolerance) {
        ArrayAssert.assertClose(losses, expected.losses, tolerance, kind + ": losses");
        Assert.assertEquals(outputs.size(), expected.outputs.size(), kind);
        for (int i = 0; i < outputs.size(); i++) {
            if (outputs.get(i) != null) { // else its loss tells
                ArrayAssert.assertClose(
                        outputs.get(i), expected.outputs.get(i), tolerance, kind + ": output " + i);
            }
        }
        Assert.assertEquals(weights.size(), expected.weights.size(), kind);
        for (int i = 0; i < weights.size(); i++) {
            ArrayAssert.assertClose(
                    weights.get(i), expected.weights.get(i), tolerance, kind + ": parameter " + i);
        }
    }
}
