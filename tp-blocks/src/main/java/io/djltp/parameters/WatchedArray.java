package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;
import ai.djl.util.NativeResource;

import io.djltp.torch.Autograd;

/**
 * The model's array of a parameter as it was when the ranks were done with it.
 *
 * @param array the array
 * @param handle the tensor that it stood for
 * @param version how often that had been changed in place
 */
record WatchedArray(NDArray array, Object handle, long version) {

    static WatchedArray of(Parameter parameter) {
        return of(parameter.getArray());
    }

    private static WatchedArray of(NDArray array) {
        Object handle = ((NativeResource<?>) array).getHandle();
        return new WatchedArray(array, handle, Autograd.version(array));
    }

    /** Returns whether the model has an array of a parameter that was not closed. */
    static boolean isThere(Parameter parameter) {
        return parameter.isInitialized() && !isFreed(parameter.getArray());
    }

    private static boolean isFreed(NDArray array) {
        return ((NativeResource<?>) array).isReleased();
    }

    /** Returns what has become of the parameter if it has another array now, else null. */
    String replacement(Parameter parameter) {
        if (!isThere(parameter)) {
            return "was freed, as block.clear() and parameter.close() do";
        }
        boolean same = parameter.getArray() == array;
        return same && ((NativeResource<?>) array).getHandle().equals(handle)
                ? null
                : "is another one now, as after model.load(...)";
    }

    /** Returns whether somebody has written into it since. */
    boolean isWrittenTo() {
        return !isFreed(array) && Autograd.version(array) != version;
    }

    /** What is computed from a placeholder is NaN, that of a frozen parameter, too. */
    void showInGraphs() {
        if (!isFreed(array) && array.getDataType().isFloating() && !array.hasGradient()) {
            array.setRequiresGradient(true);
        }
    }

    /** Returns the array as it is now. */
    WatchedArray now() {
        return isWrittenTo() ? of(array) : this;
    }
}
