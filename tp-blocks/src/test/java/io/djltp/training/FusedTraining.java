package io.djltp.training;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.head.LossOptions;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;

import java.util.List;
import java.util.function.Consumer;

/** A small network with a head that may be fused, and what five steps make of it. */
final class FusedTraining {

    static final int ROWS = 8;
    static final int FEATURES = 5;
    static final int CLASSES = 23; // uneven over 2, 3 and 4 ranks
    private static final int STEPS = 5;

    final float[] losses = new float[STEPS];
    List<float[]> weights;

    private FusedTraining() {}

    /** Returns a body and a head. */
    static Block network(Consumer<ClassificationHead.Builder> head) {
        ClassificationHead.Builder builder =
                ClassificationHead.builder()
                        .setUnits(CLASSES)
                        .optBatchShardedInput(true)
                        .optFusedLoss(false);
        head.accept(builder);
        return new SequentialBlock()
                .add(Linear.builder().setUnits(6).build())
                .add(Activation.tanhBlock())
                .add(builder.build());
    }

    static Loss loss(LossOptions options) {
        return new VocabParallelCrossEntropyLoss("loss", options);
    }

    static Optimizer sgd() {
        return Optimizer.sgd().setLearningRateTracker(Tracker.fixed(0.3f)).build();
    }

    /** What is done with a trainer. */
    @FunctionalInterface
    interface Use {
        void with(Trainer trainer, NDManager manager) throws Exception;
    }

    /** Opens a trainer from the weights that a fixed seed gives. */
    static void use(TrainerKind kind, Block block, Loss loss, Optimizer optimizer, Use use) {
        Engine.getInstance().setRandomSeed(42);
        try (Model model = Model.newInstance("net")) {
            model.setBlock(block);
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(loss)
                            .optOptimizer(optimizer)
                            .optDevices(new Device[] {Device.cpu()});
            try (Trainer trainer = kind.open(model, config);
                    NDManager manager = NDManager.newBaseManager()) {
                trainer.initialize(new Shape(ROWS, FEATURES));
                use.with(trainer, manager);
            } catch (RuntimeException | Error e) {
                throw e;
            } catch (Exception e) {
                throw new AssertionError(e);
            }
        }
    }

    static FusedTraining run(TrainerKind kind, Block block, Loss loss, Optimizer optimizer) {
        FusedTraining run = new FusedTraining();
        use(
                kind,
                block,
                loss,
                optimizer,
                (trainer, manager) -> {
                    for (int i = 0; i < STEPS; i++) {
                        try (NDManager scope = manager.newSubManager()) {
                            run.losses[i] =
                                    TrainingRun.backward(trainer, data(scope, i), labels(scope, i));
                        }
                        trainer.step();
                    }
                    trainer.close(); // hands the weights back
                    run.weights = TrainingRun.weights(block);
                });
        return run;
    }

    static NDArray data(NDManager manager, int step) {
        return TrainingRun.random(manager, step, ROWS, FEATURES);
    }

    static NDArray labels(NDManager manager, int step) {
        return TrainingRun.labels(manager, 100 + step, ROWS, CLASSES);
    }

    static NDList list(NDArray array) {
        return new NDList(array);
    }

    void assertSame(FusedTraining expected) {
        ArrayAssert.assertClose(losses, expected.losses, 1e-5, "losses");
        Assert.assertEquals(weights.size(), expected.weights.size());
        for (int i = 0; i < weights.size(); i++) {
            ArrayAssert.assertClose(
                    weights.get(i), expected.weights.get(i), 1e-5, "parameter " + i);
        }
    }
}
