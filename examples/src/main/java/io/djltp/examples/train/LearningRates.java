package io.djltp.examples.train;

import ai.djl.nn.Block;
import ai.djl.training.tracker.ParameterTracker;

import io.djltp.examples.OptimizerName;

import java.util.function.DoubleSupplier;

/** The learning rates of the parts of the network. */
final class LearningRates {

    /** Every word moves many rows of the table, and each of them by the whole rate. */
    private static final float TABLE_SHARE = 1f / 3;

    /** The rate stays until this share of the run, and then falls in a line to a fifth. */
    private static final double FALL_BEGINS = 0.3;

    private static final double LAST = 0.2;

    private LearningRates() {}

    /**
     * Returns the learning rates. Those of row-wise Adagrad fall towards the end of the run.
     *
     * @param options the options
     * @param head the head; what is below learns more slowly by row-wise Adagrad
     * @param done the share of the run that is done, the same in all processes
     * @return the tracker
     */
    static ParameterTracker of(TrainOptions options, Block head, DoubleSupplier done) {
        float rate = options.learningRate();
        if (options.optimizer != OptimizerName.ADAGRAD) {
            return (key, step) -> rate;
        }
        // ranks have keys of their own, which begin with the name of the parameter
        return (key, step) -> {
            boolean ofHead =
                    head.getDirectParameters().values().stream()
                            .anyMatch(parameter -> key.startsWith(parameter.getId()));
            return (ofHead ? rate : rate * TABLE_SHARE) * factor(done.getAsDouble());
        };
    }

    /** Returns what the rate is multiplied with when a share of the run is done. */
    static float factor(double done) {
        double fallen = Math.max(0, done - FALL_BEGINS) / (1 - FALL_BEGINS);
        return (float) (1 - (1 - LAST) * Math.min(1, fallen));
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
