package io.djltp.bridge;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;

import org.bytedeco.javacpp.PointerScope;

/** What a rank needs of libtorch's autograd and DJL does not offer to code outside its engine. */
public final class Autograd {

    private Autograd() {}

    /**
     * Computes the gradients of all leaves that an array depends on, in the calling thread, and
     * frees the graph.
     *
     * @param target the array to start from
     * @param gradient the gradient with respect to {@code target}, of the same shape
     */
    public static void backward(NDArray target, NDArray gradient) {
        JniUtils.backward((PtNDArray) target, (PtNDArray) gradient, false, false);
    }

    /**
     * Returns the gradient of a leaf without a copy. The caller closes the array; that leaves the
     * gradient where it is.
     *
     * @param leaf an array with {@link NDArray#setRequiresGradient(boolean)} set
     * @return the gradient, or {@code null} if no backward pass has reached the leaf
     */
    public static NDArray gradient(NDArray leaf) {
        return JniUtils.getGradient((PtNDArray) leaf);
    }

    /**
     * Sets a leaf's gradient to zero, if it has one.
     *
     * @param leaf the leaf
     */
    public static void zeroGradient(NDArray leaf) {
        JniUtils.zeroGrad((PtNDArray) leaf);
    }

    /**
     * Returns a view of an array that is attached to another manager and is no part of a graph.
     *
     * @param array the array
     * @param manager the manager of the view
     * @return the view
     */
    @SuppressWarnings("try") // a scope is used by being open
    public static NDArray detach(NDArray array, NDManager manager) {
        try (PointerScope scope = new PointerScope()) {
            return TensorView.toArray(TensorView.of(array).tensor().detach(), manager);
        }
    }

    /**
     * Makes an array a part of the graph, though nothing that it was computed from requires a
     * gradient.
     *
     * @param array the array
     * @return the same array if it is in the graph already, or if it cannot be; else a copy, at
     *     which the graph ends, and which may be changed in place as the array may
     */
    public static NDArray tracked(NDArray array) {
        if (!array.getDataType().isFloating() || TensorView.of(array).requiresGradient()) {
            return array;
        }
        NDArray one = array.getManager().ones(new Shape(1), array.getDataType());
        one.setRequiresGradient(true);
        return array.mul(one);
    }

    /**
     * Switches the recording of the autograd graph on or off in the calling thread until closed. A
     * fresh Java thread starts with recording on, but DJL leaves the thread that loads its engine
     * with recording off.
     *
     * @param recording whether operations are recorded
     * @return the scope that restores what was set before
     */
    public static GradMode gradMode(boolean recording) {
        return new GradMode(recording);
    }

    /**
     * Returns whether the calling thread records the autograd graph.
     *
     * @return whether recording is on
     */
    public static boolean isRecording() {
        return JniUtils.isGradMode();
    }

    /**
     * Sets how many threads an operation of the calling thread may use. The setting of libtorch is
     * per thread: each rank sets its own. Threads that have not computed yet start with what any
     * thread has set last.
     *
     * @param threads the number of threads, at least 1
     */
    public static void setThreads(int threads) {
        LibTorch.load(); // may be the first call of all
        JniUtils.setNumThreads(threads);
        JniUtils.getNumThreads(); // the thread's start, at which it takes over what was set last
    }

    /**
     * Returns how many threads an operation of the calling thread may use.
     *
     * @return the number of threads
     */
    public static int getThreads() {
        LibTorch.load(); // may be the first call of all
        return JniUtils.getNumThreads();
    }

    /** The scope of a {@link #gradMode} setting. */
    public static final class GradMode implements AutoCloseable {

        private final boolean before;

        private GradMode(boolean recording) {
            LibTorch.load(); // may be the first call of all
            before = JniUtils.isGradMode();
            JniUtils.setGradMode(recording);
        }

        /** {@inheritDoc} */
        @Override
        public void close() {
            JniUtils.setGradMode(before);
        }
    }
}
