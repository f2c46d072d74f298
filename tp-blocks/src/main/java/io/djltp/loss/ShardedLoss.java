package io.djltp.loss;

import ai.djl.ndarray.NDList;

/**
 * A loss that computes on predictions which are cut over the ranks, each rank on its slice. The
 * trainer refuses any other loss on such predictions.
 */
public interface ShardedLoss {

    /**
     * Returns what the mean of this loss over a part of the batch counts for in the mean over the
     * whole batch: the number of rows that the mean is taken over.
     *
     * @param labels the labels of the part
     * @return the weight
     */
    float getWeight(NDList labels);
}
