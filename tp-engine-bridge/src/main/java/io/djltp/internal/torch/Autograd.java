package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;

import io.djltp.internal.Errors;
import io.djltp.internal.libtorch.LibTorch;

import org.bytedeco.pytorch.Edge;
import org.bytedeco.pytorch.Node;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.jspecify.annotations.Nullable;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashSet;
import java.util.Set;

/** What a rank needs of libtorch's autograd and DJL does not offer to code outside its engine. */
@SuppressWarnings("try") // a scope is used by being open
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
        JniUtils.backward(own(target), own(gradient), false, false);
    }

    /**
     * Returns the gradient of a leaf without a copy. The caller closes the array; that leaves the
     * gradient where it is.
     *
     * @param leaf an array with {@link NDArray#setRequiresGradient(boolean)} set
     * @return the gradient, or {@code null} if no backward pass has reached the leaf
     */
    public static @Nullable NDArray gradient(NDArray leaf) {
        return JniUtils.getGradient(own(leaf));
    }

    /**
     * Returns the gradient of a leaf where it is.
     *
     * @param leaf an array with {@link NDArray#setRequiresGradient(boolean)} set
     * @return a view that is there until the gradient is dropped or the leaf closed, or {@code
     *     null} if no backward pass has reached the leaf
     */
    public static @Nullable TensorView viewGradient(NDArray leaf) {
        Tensor gradient = TensorView.of(leaf).tensor().mutable_grad();
        return gradient.defined() ? TensorView.of(gradient) : null;
    }

    /**
     * Returns the gradient of a leaf without a copy, and makes one of zeros if there is none.
     *
     * @param leaf an array with {@link NDArray#setRequiresGradient(boolean)} set
     * @return the gradient, to be closed by the caller
     */
    public static NDArray gradientOrZeros(NDArray leaf) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor tensor = TensorView.of(leaf).tensor();
            if (!tensor.grad().defined()) {
                tensor.mutable_grad().put(torch.zeros_like(tensor));
            }
        }
        return JniUtils.getGradient(own(leaf));
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
     * Drops a leaf's gradient, if it has one: the next backward pass leaves its own instead of
     * adding to a gradient of zeros.
     *
     * @param leaf the leaf
     */
    public static void dropGradient(NDArray leaf) {
        TensorView.of(leaf).tensor().mutable_grad().reset();
    }

    /**
     * Returns a view of an array that is attached to another manager and is no part of a graph.
     *
     * @param array the array
     * @param manager the manager of the view
     * @return the view
     */
    public static NDArray detach(NDArray array, NDManager manager) {
        return TorchScope.array(manager, () -> TensorView.of(array).tensor().detach());
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
     * Returns the nodes that results depend on, in the graph that libtorch has recorded. Nodes are
     * known by their address, which is theirs as long as an array that was computed through them is
     * open.
     *
     * @param results the results
     * @return the addresses of their nodes, of all operations before, and of the leaves; none if no
     *     result depends on something that requires a gradient
     */
    public static Set<Long> nodesOf(Iterable<NDArray> results) {
        Set<Long> reached = new HashSet<>();
        try (TorchScope scope = TorchScope.open()) {
            Deque<Node> open = new ArrayDeque<>();
            for (NDArray result : results) {
                Node first = TensorView.of(result).tensor().grad_fn();
                if (first != null) {
                    open.add(first);
                }
            }
            while (!open.isEmpty()) {
                Node node = open.poll();
                if (reached.add(node.address())) {
                    for (int i = 0; i < node.num_outputs(); i++) {
                        Edge edge = node.next_edge(i);
                        if (edge.is_valid()) {
                            open.add(edge.function());
                        }
                    }
                }
            }
        }
        return reached;
    }

    /**
     * Returns the node that an array comes from.
     *
     * @param array the array
     * @return the address of the node, or 0 if the array is a leaf or needs no gradient
     */
    public static long nodeOf(NDArray array) {
        try (TorchScope scope = TorchScope.open()) {
            Node node = TensorView.of(array).tensor().grad_fn();
            return node == null ? 0 : node.address();
        }
    }

    /**
     * Returns the node under which a graph knows a leaf.
     *
     * @param leaf an array that requires a gradient and was not computed
     * @return the address of the node
     */
    public static long nodeOfLeaf(NDArray leaf) {
        try (TorchScope scope = TorchScope.open();
                GradMode mode = gradMode(true)) {
            Tensor tensor = TensorView.of(leaf).tensor();
            return tensor.view_as(tensor).grad_fn().next_edge(0).function().address();
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
     * <p>Where libtorch has GNU's OpenMP, on Linux, no other thread starts with the count.
     * Elsewhere threads that have not computed yet do, unless they set their own.
     *
     * @param threads the number of threads, at least 1
     * @throws IllegalArgumentException if it is smaller than 1
     */
    public static void setThreads(int threads) {
        Errors.check(threads >= 1, "The number of threads must be 1 or more, not %s", threads);
        LibTorch.load(); // may be the first call of all
        // the thread's start, at which it takes over libtorch's count: not after its own
        JniUtils.getNumThreads();
        if (!OpenMpTeam.setThreads(threads)) {
            JniUtils.setNumThreads(threads);
        }
    }

    private static PtNDArray own(NDArray array) {
        return (PtNDArray) DelegatedArray.unwrap(array);
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
