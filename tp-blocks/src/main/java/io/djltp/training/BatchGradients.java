package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.util.NativeResource;

import io.djltp.torch.TensorView;

/**
 * Gradients of what a batch holds, which ranks do not compute: their graphs begin with views of the
 * caller's arrays, each with the rank's rows.
 */
final class BatchGradients {

    private BatchGradients() {}

    /**
     * Checks a batch before it is used.
     *
     * @param training whether it is trained on: an evaluation has no gradient to lose
     * @param data the data
     * @param labels the labels, or {@code null} if they come later
     * @throws IllegalArgumentException if DJL's own trainer would compute a gradient of an array
     */
    static void check(boolean training, NDList data, NDList labels) {
        if (training) {
            check("Input", data);
            check("Label", labels == null ? new NDList() : labels);
        }
    }

    /**
     * Checks labels that come with the loss.
     *
     * @param labels the labels
     * @throws IllegalArgumentException as {@link #check(boolean, NDList, NDList)} says
     */
    static void checkLabels(NDList labels) {
        check("Label", labels);
    }

    private static void check(String kind, NDList arrays) {
        for (int i = 0; i < arrays.size(); i++) {
            NDArray array = arrays.get(i);
            if (requiresGradient(array)) {
                throw new IllegalArgumentException(
                        kind
                                + " "
                                + i
                                + " of the batch, "
                                + array.getShape()
                                + ", requires a gradient: it is a leaf with"
                                + " setRequiresGradient(true), or was computed from one. Ranks"
                                + " compute the gradients of the network's parameters only. Give"
                                + " array.stopGradient() if that of the array is not needed, and"
                                + " let the block that has computed it be a part of the network if"
                                + " it is");
            }
        }
    }

    private static boolean requiresGradient(NDArray array) {
        return array.getDataType().isFloating()
                && !((NativeResource<?>) array).isReleased()
                && TensorView.of(array).requiresGradient();
    }
}
