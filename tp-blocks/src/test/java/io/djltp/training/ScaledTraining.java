package io.djltp.training;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.metric.Metric;
import ai.djl.metric.Metrics;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;

import io.djltp.optimizer.LossScale;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Supplier;

/**
 * A training of which steps may be left out, because their gradients are not finite with the scale
 * of the loss.
 *
 * @param network makes the network
 * @param config makes the configuration
 * @param input the shape of a batch
 * @param batch computes the gradients of a step
 */
record ScaledTraining(
        Supplier<Block> network,
        Supplier<DefaultTrainingConfig> config,
        Shape input,
        Gradients batch) {

    /** Computes the gradients of a step. */
    @FunctionalInterface
    interface Gradients {

        /** Returns the loss. */
        float compute(ParallelTrainer trainer, NDManager manager, int step);
    }

    /** What a training leaves. */
    static final class Result {

        /** Of each step that was made. */
        final List<Float> scales = new ArrayList<>();

        final List<Double> norms = new ArrayList<>();

        /** Of each step that has changed the weights. */
        final List<Float> losses = new ArrayList<>();

        /** The steps that have not. */
        final List<Integer> leftOut = new ArrayList<>();

        /** The scales of DJL's metrics. */
        final List<Float> metric = new ArrayList<>();

        final List<float[]> weights = new ArrayList<>();
        long steps;
        boolean hasUpdated;
        ArithmeticException end; // or null
    }

    /** Makes some steps. */
    Result run(TrainerKind kind, int steps) {
        return run(kind, steps, steps, List.of());
    }

    /**
     * Makes steps.
     *
     * @param kind the trainer
     * @param steps how many at most
     * @param updates after how many that have changed the weights it ends
     * @param without the numbers of steps that are not made
     */
    Result run(TrainerKind kind, int steps, int updates, List<Integer> without) {
        Result result = new Result();
        Engine.getInstance().setRandomSeed(42);
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(network.get());
            try (ParallelTrainer trainer = (ParallelTrainer) kind.open(model, config.get())) {
                trainer.initialize(input);
                trainer.setMetrics(new Metrics());
                for (int step = 0; step < steps && result.losses.size() < updates; step++) {
                    if (!without.contains(step) && !make(trainer, manager, step, result)) {
                        break;
                    }
                }
                List<Metric> metric = trainer.getMetrics().getMetric("loss_scale");
                metric.forEach(each -> result.metric.add(each.getValue().floatValue()));
                result.steps = trainer.getState().getStep();
                result.hasUpdated = !trainer.getLearningRates().getCounts().isEmpty();
            }
            result.weights.addAll(TrainingRun.weights(model.getBlock()));
        }
        return result;
    }

    /** Returns whether the training goes on. */
    private boolean make(ParallelTrainer trainer, NDManager manager, int step, Result result) {
        LossScale scale = trainer.getState().getLossScale();
        long before = scale.getState().skippedSteps();
        float loss = batch.compute(trainer, manager, step);
        try {
            trainer.step();
        } catch (ArithmeticException e) {
            result.end = e;
            return false;
        }
        result.scales.add(scale.get());
        result.norms.add(trainer.getGradientNorm());
        if (scale.getState().skippedSteps() > before) {
            result.leftOut.add(step);
        } else {
            result.losses.add(loss);
        }
        return true;
    }
}
