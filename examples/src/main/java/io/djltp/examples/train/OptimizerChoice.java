package io.djltp.examples.train;

import ai.djl.nn.Block;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.ParameterTracker;
import ai.djl.training.tracker.Tracker;

import io.djltp.training.RowwiseAdagrad;

/** The optimizer that the options name. */
final class OptimizerChoice {

    /** Every word moves many rows of the table, and one of the head. */
    private static final float TABLE_SHARE = 1f / 3;

    private OptimizerChoice() {}

    /**
     * Creates the optimizer.
     *
     * @param options the options
     * @param head the head; what is below learns more slowly by row-wise Adagrad
     * @return the optimizer
     */
    static Optimizer of(TrainOptions options, Block head) {
        float rate = options.learningRate();
        Tracker fixed = Tracker.fixed(rate);
        switch (options.optimizer) {
            case SGD:
                return Optimizer.sgd().setLearningRateTracker(fixed).build();
            case MOMENTUM:
                return Optimizer.sgd().setLearningRateTracker(fixed).optMomentum(0.9f).build();
            case ADAM:
                return Optimizer.adam().optLearningRateTracker(fixed).build();
            case ADAMW:
                return Optimizer.adamW().optLearningRateTracker(fixed).build();
            default:
                return RowwiseAdagrad.builder().optLearningRateTracker(byPart(rate, head)).build();
        }
    }

    private static ParameterTracker byPart(float rate, Block head) {
        // ranks have keys of their own, which begin with the name of the parameter
        return (key, step) ->
                head.getDirectParameters().values().stream()
                                .anyMatch(parameter -> key.startsWith(parameter.getId()))
                        ? rate
                        : rate * TABLE_SHARE;
    }
}
