package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;

import io.djltp.internal.libtorch.LibTorch;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.IntSupplier;

/** What a rank needs of libtorch's autograd and DJL does not offer to code outside its engine. */
public final class Autograd {

    /** Held while a thread sets its number of threads. */
    private static final Object THREADS = new Object();

    private Autograd() {}

    /**
     * Computes the gradients of all leaves that an array depends on, in the calling thread, and
     * frees the graph.
     *
     * @param target the array to start from
     * @param gradient the gradient with respect to {@code target}, of the same shape
     */
    public static void backward(NDArray target, NDArray gradient) {
        JniUtils.backward(own(target), own(gradient), false, false);
    }

    /**
     * Returns the gradient of a leaf without a copy. The caller closes the array; that leaves the
     * gradient where it is.
     *
     * @param leaf an array with {@link NDArray#setRequiresGradient(boolean)} set
     * @return the gradient, or {@code null} if no backward pass has reached the leaf
     */
    public static NDArray gradient(NDArray leaf) {
        return JniUtils.getGradient(own(leaf));
    }

    /**
     * Returns the gradient of a leaf without a copy, and makes one of zeros if there is none.
     *
     * @param leaf an array with {@link NDArray#setRequiresGradient(boolean)} set
     * @return the gradient, to be closed by the caller
     */
    @SuppressWarnings("try") // a scope is used by being open
    public static NDArray gradientOrZeros(NDArray leaf) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor tensor = TensorView.of(leaf).tensor();
            if (!tensor.grad().defined()) {
                tensor.mutable_grad().put(torch.zeros_like(tensor));
            }
        }
        return gradient(leaf);
    }

    /**
     * Sets a leaf's gradient to zero, if it has one.
     *
     * @param leaf the leaf
     */
    public static void zeroGradient(NDArray leaf) {
        JniUtils.zeroGrad(own(leaf));
    }

    /**
     * Drops a leaf's gradient, if it has one: the next backward pass leaves its own in its place,
     * where it would add to a gradient of zeros.
     *
     * @param leaf the leaf
     */
    public static void dropGradient(NDArray leaf) {
        Tensor tensor = TensorView.of(leaf).tensor();
        try (Tensor gradient = tensor.mutable_grad()) {
            gradient.reset();
        }
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
        try (TorchScope scope = TorchScope.open()) {
            return TensorView.toArray(TensorView.of(array).tensor().detach(), manager);
        }
    }

    /**
     * Returns a second handle to an array and its place in the graph, which no manager closes.
     *
     * @param array the array
     * @return the handle, to be closed by the caller
     */
    public static NDArray handle(NDArray array) {
        NDArray handle = TensorView.toArray(TensorView.of(array).tensor(), array.getManager());
        handle.detach();
        return handle;
    }

    /**
     * Returns whether something else refers to an array: another handle, or a graph of which it is
     * a leaf.
     *
     * @param handle a handle to the array
     * @return whether it is not the only one
     */
    public static boolean isShared(NDArray handle) {
        return TensorView.of(handle).tensor().use_count() > 1;
    }

    /**
     * Returns how often an array was changed in place, itself or through a view of it: libtorch's
     * version counter, which an array shares with its views and with {@link #detach} of it.
     *
     * @param array the array
     * @return the count
     */
    public static long version(NDArray array) {
        Tensor tensor = TensorView.of(array).tensor();
        return tensor.is_inference() ? 0 : tensor._version(); // an inference tensor has none
    }

    /**
     * Returns an array in float32 as a part of its graph. (DJL's {@code toType} leaves the graph
     * where the type changes.)
     *
     * @param array an array of any floating point type
     * @return the array in float32, attached to its manager
     */
    @SuppressWarnings("try") // a scope is used by being open
    public static NDArray toFloat32(NDArray array) {
        try (TorchScope scope = TorchScope.open()) {
            Tensor narrow = TensorView.of(array).tensor().to(ScalarType.Float);
            return TensorView.toArray(narrow, array.getManager());
        }
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
     * Sets how many threads an operation of the calling thread may use. The setting is that of the
     * thread, and of no other: each rank sets its own.
     *
     * <p>Libtorch sets two things by one call: the count of the thread, and that which threads
     * start with that have not computed yet. What it was before is therefore set again here. A
     * thread that computes for the first time in just that moment may start with the count of this
     * one, unless it sets its own.
     *
     * @param threads the number of threads, at least 1
     * @throws IllegalArgumentException if it is smaller than 1
     */
    public static void setThreads(int threads) {
        if (threads < 1) {
            throw new IllegalArgumentException(
                    "The number of threads must be 1 or more, not " + threads);
        }
        LibTorch.load(); // may be the first call of all
        synchronized (THREADS) {
            int before = inFreshThread(JniUtils::getNumThreads);
            // the thread's start, at which it takes over what was set last: not after its own
            JniUtils.getNumThreads();
            JniUtils.setNumThreads(threads);
            if (threads != before) {
                inFreshThread(
                        () -> {
                            JniUtils.setNumThreads(before);
                            return before;
                        });
            }
        }
    }

    private static PtNDArray own(NDArray array) {
        return (PtNDArray) DelegatedArray.unwrap(array);
    }

    private static int inFreshThread(IntSupplier task) {
        AtomicInteger result = new AtomicInteger();
        Thread thread = new Thread(() -> result.set(task.getAsInt()), "tp-threads");
        thread.setDaemon(true);
        thread.start();
        boolean interrupted = false;
        while (thread.isAlive()) {
            try {
                thread.join();
            } catch (InterruptedException e) {
                interrupted = true; // it takes microseconds: it is waited for
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
        return result.get();
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
