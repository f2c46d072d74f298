package io.djltp.internal.optimizer;

import ai.djl.nn.Block;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.ParameterTracker;

import io.djltp.optimizer.RowwiseAdagrad;

import java.util.function.DoubleSupplier;

/** Row-wise Adagrad for a large head above a table of embeddings. */
public final class HeadRates {

    /** The share of the rate that a table of embeddings has, and what else learns from scratch. */
    public static final float TABLE_SHARE = 1f / 3;

    private static final double FALL_BEGINS = 0.3; // the rate stays until this share of the run
    private static final double LAST_RATE = 0.2; // and then falls in a line to a fifth

    private HeadRates() {}

    /**
     * Returns the optimizer. Its rates fall towards the end of a run, and what is below the head
     * learns more slowly: every row moves many rows of the table.
     *
     * @param head the head
     * @param rate the rate of the head, at first
     * @param batch the rows of a batch
     * @param share the share of the rate that what is below the head has
     * @param done the share of the run that is done, the same in all processes
     * @return the optimizer
     */
    public static Optimizer optimizer(
            Block head, float rate, int batch, float share, DoubleSupplier done) {
        ParameterTracker whole = rates(head, rate, share);
        ParameterTracker rates =
                (key, step) -> whole.getNewValue(key, step) * factor(done.getAsDouble());
        // A class has a gradient of about 2 divided by the rows of a step where it is the label of
        // one of them, and a twentieth of that and less where it is not. Without an epsilon of that
        // order the first step of every class is the whole rate all the same, away from all rows,
        // and it takes hundreds of steps to come back.
        return RowwiseAdagrad.builder()
                .optLearningRateTracker(rates)
                .optEpsilon(0.5f / batch)
                .build();
    }

    /**
     * Returns the learning rates of the parameters.
     *
     * @param head the head
     * @param rate the rate of the head
     * @param share the share of the rate that what is below the head has
     * @return the rates
     */
    public static ParameterTracker rates(Block head, float rate, float share) {
        // ranks have keys of their own, which begin with the name of the parameter
        return (key, step) ->
                head.getDirectParameters().values().stream()
                                .anyMatch(parameter -> key.startsWith(parameter.getId()))
                        ? rate
                        : rate * share;
    }

    /**
     * Returns what the rate is multiplied with.
     *
     * @param done the share of the run that is done
     * @return 1, falling to a fifth
     */
    public static float factor(double done) {
        double fallen = Math.max(0, done - FALL_BEGINS) / (1 - FALL_BEGINS);
        return (float) (1 - (1 - LAST_RATE) * Math.min(1, fallen));
    }
}
