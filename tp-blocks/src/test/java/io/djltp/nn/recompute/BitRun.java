package io.djltp.nn.recompute;

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

import io.djltp.collective.CollectiveCounts;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;

import java.util.ArrayList;
import java.util.List;

/** A few steps of two micro-batches each, and all bits of what comes out. */
final class BitRun {

    private static final int STEPS = 2;

    final List<float[]> outputs = new ArrayList<>();
    List<float[]> weights;
    CollectiveCounts forward; // of the last micro-batch
    CollectiveCounts backward;

    private BitRun() {}

    /**
     * Trains.
     *
     * @param kind the trainer
     * @param block the network
     * @param batches the batches
     * @param clip the limit of the gradient's norm, or 0
     */
    static BitRun of(TrainerKind kind, Block block, Network.Batches batches, float clip) {
        BitRun run = new BitRun();
        Engine.getInstance().setRandomSeed(42);
        try (Model model = Model.newInstance("net", Device.cpu());
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(block);
            DefaultTrainingConfig config = Configs.of(new HalfSquareLoss(), Configs.adam(0.01f));
            try (Trainer trainer = kind.clippedTo(clip).open(model, config)) {
                trainer.initialize(batches.make(manager, 0)[0].getShapes());
                for (int step = 0; step < STEPS; step++) {
                    run.step(trainer, batches.make(manager, 2 * step));
                    run.step(trainer, batches.make(manager, 2 * step + 1));
                    trainer.step();
                }
                NDList[] last = batches.make(manager, 0);
                run.outputs.add(trainer.evaluate(last[0]).head().toFloatArray());
            }
            run.weights = TrainingRun.weights(block);
        }
        return run;
    }

    private void step(Trainer trainer, NDList[] batch) {
        CollectiveCounts start = counts(trainer);
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDList output = trainer.forward(batch[0], batch[1]);
            NDArray loss = trainer.getLoss().evaluate(batch[1], output);
            CollectiveCounts middle = counts(trainer);
            collector.backward(loss);
            outputs.add(output.head().toFloatArray());
            if (start != null) {
                forward = middle.minus(start);
                backward = counts(trainer).minus(middle);
            }
        }
    }

    private static CollectiveCounts counts(Trainer trainer) {
        return trainer instanceof ParallelTrainer
                ? ((ParallelTrainer) trainer).getCollectiveCounts()
                : null;
    }

    /** Asserts that all bits are those of another run. */
    void assertSame(BitRun expected, String what) {
        Assert.assertEquals(outputs.size(), expected.outputs.size(), what);
        ArrayAssert.assertAllBitEqual(outputs, expected.outputs, what + " out");
        Assert.assertEquals(weights.size(), expected.weights.size(), what);
        ArrayAssert.assertAllBitEqual(weights, expected.weights, what + " w");
    }
}
