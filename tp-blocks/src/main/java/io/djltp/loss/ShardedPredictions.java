package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;

import java.util.function.BiFunction;

/** Predictions that lie on the ranks, each with its slice, and can be evaluated there. */
public interface ShardedPredictions {

    /**
     * Evaluates the predictions on all ranks at once.
     *
     * @param labels the labels of the whole batch
     * @param evaluator computes, on a rank, from the rank's labels and predictions a result of one
     *     element a row
     * @return the results of all rows
     */
    NDArray evaluateOnRanks(NDList labels, BiFunction<NDList, NDList, NDArray> evaluator);
}
