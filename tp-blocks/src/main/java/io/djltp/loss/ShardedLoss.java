package io.djltp.loss;

import ai.djl.ndarray.NDList;

/**
 * A loss that computes on predictions which are cut over the ranks, each rank on its slice. The
 * trainer refuses any other loss on such predictions.
 */
public interface ShardedLoss {

    /**
     * Returns what the mean of this loss over a part of the batch counts for in the mean over the
     * whole batch: the number of rows that the mean is taken over, or the sum of their weights.
     *
     * @param labels the labels of the part
     * @return the weight
     */
    float getWeight(NDList labels);

    /**
     * Returns whether the loss is a mean over rows. One that is not is computed of all rows.
     *
     * @return whether means of parts of a batch, by their weight, have the loss as their mean
     */
    default boolean isMean() {
        return true;
    }

    /**
     * Checks the labels of the whole batch on every rank, before any of them computes its part and
     * waits for the others: so all refuse alike.
     *
     * @param labels the labels of the whole batch
     * @param classes the number of classes over all ranks
     * @throws IllegalArgumentException if a label is no class
     */
    default void checkLabels(NDList labels, long classes) {}
}
