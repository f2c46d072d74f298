package io.djltp.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;

import java.util.concurrent.atomic.AtomicReference;

/**
 * An input of a {@link Recomputation}: its value until the function is computed again, and its
 * place in the graph, where the gradient of that arrives.
 */
@SuppressWarnings("try") // a scope is used by being open
final class RecomputedInput implements AutoCloseable {

    private final NDManager manager;
    private final NDArray value;
    private final PassedGradient above; // at the input of the second computation, or null
    private final PassedGradient below; // at the input in the graph, or null
    private final NDArray entry; // or null: it needs no gradient
    private NDArray gradient;

    RecomputedInput(NDArray array, NDManager manager, AtomicReference<Throwable> failure) {
        this.manager = manager;
        value = Autograd.detach(array, manager);
        boolean tracked = Autograd.isRecording() && TensorView.of(array).requiresGradient();
        above = tracked ? new PassedGradient(this::keep, failure) : null;
        below = tracked ? new PassedGradient(this::replace, failure) : null;
        entry = tracked ? hooked(array, below, manager) : null;
    }

    private static NDArray hooked(NDArray array, PassedGradient hook, NDManager manager) {
        try (PointerScope scope = new PointerScope()) {
            Tensor tensor = TensorView.of(array).tensor();
            Tensor view = tensor.view_as(tensor);
            view.register_hook(hook);
            return TensorView.toArray(view, manager);
        }
    }

    boolean needsGradient() {
        return entry != null;
    }

    /** Returns a sum of no elements: zero, which depends on the input. */
    Tensor zero() {
        Tensor seen = TensorView.of(entry).tensor();
        return (seen.dim() == 0 ? seen.view(1) : seen).narrow(0, 0, 0).sum();
    }

    /** Returns the value at the beginning of a graph. */
    NDArray begin(NDManager scope) {
        NDArray leaf = Autograd.detach(value, scope);
        if (!needsGradient()) {
            return leaf;
        }
        leaf.setRequiresGradient(true);
        try (Autograd.GradMode mode = Autograd.gradMode(true)) {
            return hooked(leaf, above, scope);
        }
    }

    /** Keeps the gradient of the second computation until the graph of the input asks for it. */
    private Tensor keep(Tensor arrived) {
        gradient = TensorView.toArray(arrived, manager);
        return arrived;
    }

    private Tensor replace(Tensor zeros) {
        // where the output does not depend on the input, zeros are right
        return gradient == null ? zeros : TensorView.of(gradient).tensor();
    }

    /** Lets go of the value, when the function has been computed again. */
    void forget() {
        value.close();
    }

    /** Frees the hooks. */
    @Override
    public void close() {
        if (needsGradient()) {
            above.close();
            below.close();
        }
    }
}
