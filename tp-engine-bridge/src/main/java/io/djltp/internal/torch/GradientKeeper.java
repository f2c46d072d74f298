package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorBase;
import org.bytedeco.pytorch.TensorTensorHook;
import org.jspecify.annotations.Nullable;

import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;

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

    private final Set<KnownGradient> kept = ConcurrentHashMap.newKeySet();

    /** Creates a keeper that holds nothing yet. */
    public GradientKeeper() {}

    /**
     * Makes a function of an array known to autograd by its value and its gradient.
     *
     * @param input what the function depends on; requires a gradient
     * @param value the value of the function, one element; or one for each row, whose gradients do
     *     not depend on other rows
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
    public NDArray scalar(
            NDArray input,
            NDArray value,
            NDArray gradient,
            @Nullable Consumer<TensorView> listener) {
        Tensor known = TensorView.of(gradient).tensor(); // loads libtorch: before any hook is made
        boolean byRow = !value.getShape().isScalar();
        KnownGradient hook = new KnownGradient(known, listener, byRow, input.getManager());
        return TorchScope.array(
                input.getManager(),
                () -> {
                    // The gradient of a sum is a view of its elements: the cheapest way to a loss
                    // and back. The sum's value is replaced, its place in the graph stays.
                    Tensor tensor = TensorView.of(input).tensor();
                    Tensor node = tensor.view_as(tensor);
                    node.register_hook(hook);
                    Tensor values = TensorView.of(value).tensor().detach();
                    Tensor sum = hook.byRow ? node.sum(-1) : node.sum();
                    Tensor loss = sum.to(values.scalar_type());
                    loss.detach().copy_(values);
                    return loss;
                });
    }

    /** Frees the gradients that a backward pass has taken. */
    public void clearTaken() {
        kept.stream().filter(KnownGradient::isTaken).forEach(KnownGradient::release);
    }

    /** Returns how many gradients are kept. */
    int size() {
        return kept.size();
    }

    /** Frees all gradients. No backward pass through them may follow. */
    @Override
    public void close() {
        kept.forEach(KnownGradient::release);
    }

    /**
     * A gradient hook that answers with a gradient computed before, times what comes from above. It
     * is freed with the manager of the pass at the latest, by the thread that closes it: a pass may
     * be given up without a backward pass.
     */
    private final class KnownGradient extends TensorTensorHook {

        private final Tensor gradient;
        private final @Nullable Consumer<TensorView> listener;
        private final boolean byRow;
        private final NDManager pass;
        private final String id = UUID.randomUUID().toString();
        private boolean taken;
        private boolean released;

        KnownGradient(
                Tensor gradient,
                @Nullable Consumer<TensorView> listener,
                boolean byRow,
                NDManager pass) {
            this.byRow = byRow;
            this.gradient = new Tensor(gradient); // a reference of its own: that may be closed
            this.listener = listener;
            this.pass = pass;
            kept.add(this);
            pass.attachUncappedInternal(id, this::release);
        }

        /** {@inheritDoc} */
        @Override
        public synchronized TensorBase call(TensorBase above) {
            try (PointerScope scope = new PointerScope()) {
                if (taken || released) {
                    throw new IllegalStateException(
                            released
                                    ? "A backward pass through a loss whose pass was closed"
                                    : "A second backward pass through the same loss");
                }
                taken = true;
                Tensor scale = new Tensor(above); // expanded to the input's shape
                if (byRow) {
                    gradient.mul_(scale);
                    return gradient;
                }
                while (scale.dim() > 0) {
                    scale = scale.select(0, 0);
                }
                if (listener != null) {
                    listener.accept(TensorView.of(scale));
                }
                if (HostReads.known(scale) != 1) {
                    gradient.mul_(scale);
                }
            } finally {
                above.close(); // this call owns it: not left to the collector
            }
            return gradient;
        }

        synchronized boolean isTaken() {
            return taken;
        }

        synchronized void release() {
            if (!released) {
                released = true;
                kept.remove(this);
                pass.detachInternal(id);
                gradient.close();
                close();
            }
        }
    }
}
