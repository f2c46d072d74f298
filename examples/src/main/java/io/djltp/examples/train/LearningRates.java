package io.djltp.examples.train;

import ai.djl.nn.Block;
import ai.djl.training.tracker.ParameterTracker;

import io.djltp.examples.OptimizerName;

/** The learning rates of the parts of the network. */
final class LearningRates {

    /** Every word moves many rows of the table, and each of them by the whole rate. */
    private static final float TABLE_SHARE = 1f / 3;

    private LearningRates() {}

    /**
     * Returns the learning rates.
     *
     * @param options the options
     * @param head the head; what is below learns more slowly by row-wise Adagrad
     * @return the tracker
     */
    static ParameterTracker of(TrainOptions options, Block head) {
        float rate = options.learningRate();
        float below = options.optimizer == OptimizerName.ADAGRAD ? rate * TABLE_SHARE : rate;
        // ranks have keys of their own, which begin with the name of the parameter
        return (key, step) ->
                head.getDirectParameters().values().stream()
                                .anyMatch(parameter -> key.startsWith(parameter.getId()))
                        ? rate
                        : below;
    }

    /**
     * Returns what Adagrad adds to the root of a row's mean squares. A class has a gradient of
     * about 2 divided by the words of a step where it is the lemma of one of them, and a twentieth
     * of that and less where it is not. Without an epsilon of that order the first step of every
     * class is the whole rate all the same, away from all words, and it takes hundreds of steps to
     * come back.
     *
     * @param options the options
     * @return the epsilon
     */
    static float epsilon(TrainOptions options) {
        return 0.5f / options.batch;
    }
}
