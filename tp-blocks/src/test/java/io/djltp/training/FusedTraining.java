package io.djltp.training;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.head.LossOptions;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import java.util.List;
import java.util.function.Consumer;

/** A small network with a head that may be fused, and what five steps make of it. */
final class FusedTraining {

    static final int ROWS = 8;
    static final int FEATURES = 5;
    static final int CLASSES = 23; // uneven over 2, 3 and 4 ranks
    private static final int STEPS = 5;

    final float[] losses;
    List<float[]> weights;

    private FusedTraining(int steps) {
        losses = new float[steps];
    }

    /** Returns a body and a head. */
    static Block network(Consumer<ClassificationHead.Builder> head) {
        ClassificationHead.Builder builder =
                ClassificationHead.builder()
                        .setUnits(CLASSES)
                        .optBatchShardedInput(true)
                        .optFusedLoss(false);
        head.accept(builder);
        return sequence(linear(6), Activation.tanhBlock(), builder.build());
    }

    static Loss loss(LossOptions options) {
        return new VocabParallelCrossEntropyLoss("loss", options);
    }

    static Optimizer sgd() {
        return Configs.sgd(0.3f);
    }

    /** What is done with a trainer. */
    @FunctionalInterface
    interface Use {
        void with(Trainer trainer, NDManager manager) throws Exception;
    }

    /** Opens a trainer from the weights that a fixed seed gives. */
    static void use(TrainerKind kind, Block block, Use use) {
        use(kind, block, loss(LossOptions.DEFAULT), sgd(), use);
    }

    static void use(TrainerKind kind, Block block, Loss loss, Optimizer optimizer, Use use) {
        Engine.getInstance().setRandomSeed(42);
        try (Model model = Model.newInstance("net")) {
            model.setBlock(block);
            DefaultTrainingConfig config = Configs.of(loss, optimizer);
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

    /** What is done before a step. */
    @FunctionalInterface
    interface Pass {

        /** Computes gradients, and returns a loss. */
        float run(Trainer trainer, NDManager manager, int step);
    }

    static FusedTraining run(TrainerKind kind, Block block) {
        return run(kind, block, loss(LossOptions.DEFAULT), sgd());
    }

    /** Trains with a batch in each step. */
    static FusedTraining run(TrainerKind kind, Block block, Loss loss, Optimizer optimizer) {
        return run(kind, block, loss, optimizer, STEPS, FusedTraining::backward);
    }

    static FusedTraining run(
            TrainerKind kind, Block block, Loss loss, Optimizer optimizer, int steps, Pass pass) {
        FusedTraining run = new FusedTraining(steps);
        use(
                kind,
                block,
                loss,
                optimizer,
                (trainer, manager) -> {
                    for (int step = 0; step < steps; step++) {
                        try (NDManager scope = manager.newSubManager()) {
                            run.losses[step] = pass.run(trainer, scope, step);
                        }
                        trainer.step();
                    }
                    trainer.close(); // hands the weights back
                    run.weights = TrainingRun.weights(block);
                });
        return run;
    }

    /** Computes the gradients of a batch, and returns its loss. */
    static float backward(Trainer trainer, NDManager manager, int batch) {
        return TrainingRun.backward(trainer, data(manager, batch), labels(manager, batch));
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
        ArrayAssert.assertAllClose(weights, expected.weights, 1e-5, "parameter");
    }
}
