package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;

import io.djltp.parameters.ShardedArray;
import io.djltp.torch.Autograd;

/**
 * Whether the caller has changed predictions in place, of which the ranks have their own. Those of
 * an evaluation are values, of which a loss is computed as they are now; of those that are trained
 * on the ranks have the graph.
 */
final class ChangedPredictions {

    private final boolean training;
    private final NDArray[] values; // null where no values are
    private final long[] versions;

    ChangedPredictions(NDList predictions, boolean training) {
        this.training = training;
        values = new NDArray[predictions.size()];
        versions = new long[predictions.size()];
        for (int i = 0; i < values.length; i++) {
            if (!ShardedArray.isStandIn(predictions.get(i))) {
                watch(i, predictions.get(i));
            }
        }
    }

    /** Begins to watch an array, which may have been made when it was asked for. */
    void watch(int index, NDArray array) {
        values[index] = array;
        versions[index] = Autograd.version(array);
    }

    /** Takes the predictions as they are for those of the ranks. */
    void settle() {
        for (int i = 0; i < values.length; i++) {
            if (values[i] != null && !InPlaceCheck.isClosed(values[i])) {
                versions[i] = Autograd.version(values[i]);
            }
        }
    }

    /**
     * Returns the predictions if they were changed, else {@code null}.
     *
     * @throws IllegalArgumentException if nothing can be computed of them
     */
    NDList find() {
        int first = -1;
        boolean whole = !training;
        for (int i = 0; i < values.length; i++) {
            whole &= values[i] != null;
            boolean open = values[i] != null && !InPlaceCheck.isClosed(values[i]);
            if (first < 0 && open && Autograd.version(values[i]) != versions[i]) {
                first = i;
            }
        }
        if (first < 0) {
            return null;
        }
        if (!whole) {
            throw new IllegalArgumentException(
                    "Output "
                            + first
                            + " of the network, "
                            + values[first].getShape()
                            + ", was changed in place after the pass, and the ranks compute the"
                            + " loss of what they have: "
                            + (training
                                    ? "let a block of the network, or the loss, compute what is to"
                                            + " be trained on"
                                    : "another output is cut over the ranks; build its layer with"
                                            + " optGatherOutput(true)")
                            + ", or change a copy, predictions.get("
                            + first
                            + ").duplicate()");
        }
        return new NDList(values);
    }
}
