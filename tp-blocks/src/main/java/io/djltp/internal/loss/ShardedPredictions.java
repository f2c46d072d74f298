package io.djltp.internal.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;

import io.djltp.internal.parameters.ShardedArray;

import org.jspecify.annotations.Nullable;

import java.util.function.BiFunction;

/** Predictions that lie on the ranks, each with its slice, and can be evaluated there. */
public interface ShardedPredictions {

    /**
     * Returns the predictions that a list is of: the output of a trainer, or a list that has one of
     * its sharded arrays, as DJL's {@code IndexEvaluator} makes it.
     *
     * @param predictions the list
     * @return the predictions, or {@code null} if the list holds their numbers
     */
    static @Nullable ShardedPredictions of(NDList predictions) {
        Object owner =
                predictions instanceof ShardedPredictions || predictions.size() != 1
                        ? predictions
                        : ShardedArray.ownerOf(predictions.head());
        return owner instanceof ShardedPredictions ? (ShardedPredictions) owner : null;
    }

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
