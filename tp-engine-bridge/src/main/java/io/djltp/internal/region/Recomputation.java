package io.djltp.internal.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;

import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.JavaMemory;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Function;

/**
 * A function whose inner arrays are not kept for the backward pass, but computed again there (Chen
 * et al., 2016, <a href="https://arxiv.org/abs/1604.06174">arXiv:1604.06174</a>).
 *
 * <pre>
 *   forward    y = f(x), and its graph is dropped
 *   backward   dy ──► f(x) again; its backward pass: dx, and the parameters' gradients
 * </pre>
 *
 * <p>DJL has no autograd functions of the user's own. So the output is put behind the inputs in the
 * graph by an addition that changes nothing: of the sum of an empty slice of each input, which is
 * zero, to an empty slice of the output. A hook of the output computes the function again, in a
 * backward pass within the backward pass, and a hook of each input replaces the zeros that arrive
 * there by the gradient that came out. All ranks have the same graph, so that collective operations
 * inside are issued in the same order on all.
 *
 * <p>The function has to compute the same at both calls. Gradients of its parameters are the same
 * as without it, bit for bit; they are added up in the order in which the backward pass comes by.
 *
 * <p>An instance serves one call. It lives as long as the manager of the call's first input.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class Recomputation implements AutoCloseable {

    private final Function<NDList, NDArray> function;
    private final AtomicReference<@Nullable Throwable> failure;
    private final GradientHook outputHook;
    private final List<Input> inputs = new ArrayList<>();

    /**
     * Prepares a call.
     *
     * @param function the function; what it makes is attached to the managers of its arguments, at
     *     which a graph of its own begins
     * @param failure where the first exception of the backward pass is kept: libtorch passes on
     *     nothing but its message
     */
    public Recomputation(
            Function<NDList, NDArray> function, AtomicReference<@Nullable Throwable> failure) {
        LibTorch.load();
        this.function = function;
        this.failure = failure;
        outputHook = new GradientHook(this::recompute, failure);
    }

    /**
     * Computes the function.
     *
     * @param arrays the inputs, one or more
     * @return the output, attached to the manager of the first input; a part of the graph if the
     *     thread records one
     */
    public NDArray forward(NDList arrays) {
        NDManager manager = arrays.head().getManager();
        manager.attachInternal(UUID.randomUUID().toString(), this);
        arrays.forEach(array -> inputs.add(new Input(array, manager)));
        try (NDManager scope = manager.newSubManager();
                JavaMemory memory = JavaMemory.keep(scope)) {
            NDArray y = function.apply(begin(scope));
            boolean differentiated = TensorView.of(y).requiresGradient();
            return TorchScope.array(
                    manager,
                    () -> {
                        Tensor value = TensorView.of(y).tensor().detach();
                        return differentiated ? tied(value) : value;
                    });
        }
    }

    private NDList begin(NDManager scope) {
        NDList values = new NDList();
        inputs.forEach(input -> values.add(input.begin(scope)));
        return values;
    }

    /** Returns a copy of the output behind the inputs, or behind a leaf if those need nothing. */
    private Tensor tied(Tensor value) {
        Tensor zero = null;
        for (Input input : inputs) {
            if (input.place != null) {
                Tensor other = input.place.zero().to(value.scalar_type());
                zero = zero == null ? other : zero.add(other);
            }
        }
        if (zero == null) {
            zero = torch.zeros(new long[] {0}, value.options()).requires_grad_(true).sum();
        }
        Tensor output = value.clone();
        none(output).add_(zero); // the graph does not know how many elements, and all bits stay
        output.register_hook(outputHook);
        return output;
    }

    /** Returns a slice without elements. */
    private static Tensor none(Tensor tensor) {
        return (tensor.dim() == 0 ? tensor.view(1) : tensor).narrow(0, 0, 0);
    }

    private Tensor recompute(Tensor outputGradient) {
        try (NDManager scope = inputs.get(0).manager.newSubManager()) {
            NDArray y;
            try (Autograd.GradMode mode = Autograd.gradMode(true);
                    JavaMemory memory = JavaMemory.keep(scope)) {
                y = function.apply(begin(scope));
            }
            inputs.forEach(input -> input.value.close());
            Autograd.backward(y, TensorView.toArray(outputGradient.detach(), scope));
            return outputGradient;
        }
    }

    /** Frees the hooks. No backward pass through the output may follow. */
    @Override
    public void close() {
        outputHook.close();
        inputs.forEach(Input::close);
    }

    /**
     * An input: its value until the function is computed again, and its place in the graph, where
     * the gradient of that arrives.
     */
    private final class Input {

        private final NDArray value;
        private final NDManager manager;
        private final @Nullable Place place; // null: it needs no gradient
        private @Nullable NDArray gradient;

        Input(NDArray array, NDManager manager) {
            this.manager = manager;
            value = Autograd.detach(array, manager);
            boolean tracked = Autograd.isRecording() && TensorView.of(array).requiresGradient();
            place = tracked ? place(array) : null;
        }

        private Place place(NDArray array) {
            GradientHook above = new GradientHook(this::keep, failure);
            GradientHook below = new GradientHook(this::replace, failure);
            return new Place(above, below, hooked(array, below, manager));
        }

        private NDArray hooked(NDArray array, GradientHook hook, NDManager owner) {
            return TorchScope.array(owner, () -> hook.on(TensorView.of(array).tensor()));
        }

        /** Returns the value at the beginning of a graph. */
        NDArray begin(NDManager scope) {
            NDArray leaf = Autograd.detach(value, scope);
            if (place == null) {
                return leaf;
            }
            leaf.setRequiresGradient(true);
            try (Autograd.GradMode mode = Autograd.gradMode(true)) {
                return hooked(leaf, place.above, scope);
            }
        }

        /**
         * Keeps the gradient of the second computation until the graph of the input asks for it.
         */
        private Tensor keep(Tensor arrived) {
            gradient = TensorView.toArray(arrived, manager);
            return arrived;
        }

        private Tensor replace(Tensor zeros) {
            // where the output does not depend on the input, zeros are right
            return gradient == null ? zeros : TensorView.of(gradient).tensor();
        }

        void close() {
            if (place != null) {
                place.above.close();
                place.below.close();
            }
        }
    }

    /**
     * The place of an input in the graph.
     *
     * @param above the hook at the input of the second computation
     * @param below the hook at the input in the graph
     * @param entry the input in the graph, behind its hook
     */
    private record Place(GradientHook above, GradientHook below, NDArray entry) {

        /** Returns a sum of no elements: zero, which depends on the input. */
        Tensor zero() {
            return none(TensorView.of(entry).tensor()).sum();
        }
    }
}
