package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;

import org.bytedeco.pytorch.Tensor;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.DoubleConsumer;

/**
 * Keeps gradients that a rank has computed in the forward pass until the backward pass takes them.
 * For functions whose gradient comes almost free with their value, such as a cross entropy, whose
 * gradient is its own softmax: nothing is saved for autograd and nothing is computed twice. A
 * gradient that no backward pass takes is freed with the manager of the input.
 *
 * <p>An instance belongs to one rank. That manager may be closed by any thread.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class GradientKeeper implements AutoCloseable {

    private final Map<String, KnownGradient> kept = new ConcurrentHashMap<>();

    /** Creates a keeper that holds nothing yet. */
    public GradientKeeper() {}

    /**
     * Makes a scalar function of an array known to autograd by its value and its gradient.
     *
     * @param input what the function depends on; requires a gradient
     * @param value the value of the function, one element
     * @param gradient the gradient of the value with respect to {@code input}, of the shape and
     *     data type of {@code input}; taken over, and scaled in place by the backward pass
     * @return the value as a part of the graph, attached to the manager of {@code input}
     */
    public NDArray scalar(NDArray input, NDArray value, NDArray gradient) {
        return scalar(input, value, gradient, null);
    }

    /**
     * Makes a scalar function of an array known to autograd, and tells when it is differentiated.
     *
     * @param input what the function depends on; requires a gradient
     * @param value the value of the function, one element
     * @param gradient the gradient of the value with respect to {@code input}, taken over
     * @param listener gets, in the backward pass, what the gradient is multiplied with; may be
     *     {@code null}
     * @return the value as a part of the graph, attached to the manager of {@code input}
     */
    public NDArray scalar(NDArray input, NDArray value, NDArray gradient, DoubleConsumer listener) {
        Tensor known = TensorView.of(gradient).tensor(); // loads libtorch: before any hook is made
        KnownGradient hook = new KnownGradient(known, listener, input.getManager(), kept);
        try (TorchScope scope = TorchScope.open()) {
            // The gradient of a sum is a view of one element: the cheapest way from here to a
            // scalar and back. The value of the sum is replaced, its place in the graph stays.
            Tensor tensor = TensorView.of(input).tensor();
            Tensor node = tensor.view_as(tensor);
            node.register_hook(hook);
            Tensor scalar = node.sum().to(TensorView.of(value).tensor().scalar_type());
            scalar.detach().copy_(TensorView.of(value).tensor().detach());
            return TensorView.toArray(scalar, input.getManager());
        }
    }

    /** Frees the gradients that a backward pass has taken. */
    public void clearTaken() {
        kept.values().stream().filter(KnownGradient::isTaken).forEach(KnownGradient::release);
    }

    /** Returns how many gradients are kept. */
    int size() {
        return kept.size();
    }

    /** Frees all gradients. No backward pass through them may follow. */
    @Override
    public void close() {
        kept.values().forEach(KnownGradient::release);
    }
}
