package io.djltp.training;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainingRun.random;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.head.LossOptions;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import java.util.function.Consumer;

/** A small network with a head that may be fused, and what a few steps make of it. */
final class FusedTraining {

    static final int ROWS = 8;
    static final int FEATURES = 5;
    static final int CLASSES = 23; // uneven over 2, 3 and 4 ranks
    static final LossOptions DEFAULT = LossOptions.DEFAULT;

    private FusedTraining() {}

    /** Returns a body and a head, which is not fused unless an option says so. */
    static Block network(Consumer<ClassificationHead.Builder> options) {
        ClassificationHead.Builder head =
                ClassificationHead.builder().setUnits(CLASSES).optBatchShardedInput(true);
        options.accept(head.optFusedLoss(false));
        return sequence(linear(6), tanh(), head.build());
    }

    static Block plain() {
        return network(head -> {});
    }

    static Block fused() {
        return fused(head -> {});
    }

    static Block fused(Consumer<ClassificationHead.Builder> options) {
        return network(head -> options.accept(head.optFusedLoss(true)));
    }

    static Loss loss(LossOptions options) {
        return new VocabParallelCrossEntropyLoss("loss", options);
    }

    static Optimizer sgd() {
        return Configs.sgd(0.3f);
    }

    static Optimizer adagrad(float rate) {
        return RowwiseAdagrad.builder().optLearningRateTracker(Tracker.fixed(rate)).build();
    }

    /** What is done with a trainer. */
    @FunctionalInterface
    interface Use {
        void with(Trainer trainer, NDManager manager) throws Exception;
    }

    /** Opens a trainer from the weights that a fixed seed gives. */
    static void use(TrainerKind kind, Block block, Use use) {
        use(kind, block, loss(DEFAULT), sgd(), use);
    }

    static void use(TrainerKind kind, Block block, Loss loss, Optimizer optimizer, Use use) {
        Shape input = new Shape(ROWS, FEATURES);
        TrainingRun.of(
                kind, block, Configs.of(loss, optimizer), input, (t, m, n) -> use.with(t, m));
    }

    /** Computes the gradients of a step, and returns a loss. */
    @FunctionalInterface
    interface Pass {
        float run(Trainer trainer, NDManager manager, int step);
    }

    static TrainingRun run(TrainerKind kind, Block block, LossOptions options) {
        return run(kind, block, loss(options), sgd());
    }

    /** Trains with a batch in each of five steps. */
    static TrainingRun run(TrainerKind kind, Block block, Loss loss, Optimizer optimizer) {
        return run(kind, block, loss, optimizer, 5, FusedTraining::backward);
    }

    static TrainingRun run(
            TrainerKind kind, Block block, Loss loss, Optimizer optimizer, int steps, Pass pass) {
        return TrainingRun.of(
                kind,
                block,
                Configs.of(loss, optimizer),
                new Shape(ROWS, FEATURES),
                (trainer, manager, losses) -> {
                    for (int step = 0; step < steps; step++) {
                        try (NDManager scope = manager.newSubManager()) {
                            losses.add(pass.run(trainer, scope, step));
                        }
                        trainer.step();
                    }
                });
    }

    /** Computes the gradients of a batch, and returns its loss. */
    static float backward(Trainer trainer, NDManager manager, int batch) {
        return TrainingRun.backward(trainer, data(manager, batch), labels(manager, batch));
    }

    static NDList data(NDManager manager, int step) {
        return new NDList(random(manager, step, ROWS, FEATURES));
    }

    static NDList labels(NDManager manager, int step) {
        return new NDList(TrainingRun.labels(manager, 100 + step, ROWS, CLASSES));
    }

    static void assertSame(TrainingRun actual, TrainingRun expected) {
        actual.assertSame(expected, 1e-5);
    }
}
