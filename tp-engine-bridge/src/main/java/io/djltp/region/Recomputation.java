package io.djltp.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

import io.djltp.torch.Autograd;
import io.djltp.torch.LibTorch;
import io.djltp.torch.TensorView;
import io.djltp.torch.TorchScope;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

import java.util.UUID;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.UnaryOperator;

/**
 * A function whose inner arrays are not kept for the backward pass, but computed again there (Chen
 * et al., 2016, <a href="https://arxiv.org/abs/1604.06174">arXiv:1604.06174</a>).
 *
 * <pre>
 *   forward    y = f(x), without a graph
 *   backward   dy ──► f(x) again, with a graph; its backward pass: dx, and the parameters' gradients
 * </pre>
 *
 * <p>DJL has no autograd functions of the user's own. The output is {@code y + sum(nothing of x)}:
 * a sum of no elements, which is zero and ties the output to the input in the graph. A hook of the
 * output computes the function again, in a backward pass within the backward pass, and a hook of
 * the input puts the gradient that came out in the place of the zeros that arrive there. All ranks
 * have the same graph, so that collective operations inside are issued in the same order on all.
 *
 * <p>The function has to compute the same at both calls. Gradients of its parameters are the same
 * as without it, bit for bit; they are added up in the order in which the backward pass comes by.
 *
 * <p>An instance serves one call. It lives as long as the manager of the call's input.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class Recomputation implements AutoCloseable {

    private final UnaryOperator<NDArray> function;
    private final GradientHook outputHook;
    private final GradientHook inputHook;
    private NDManager manager;
    private NDArray input;
    private boolean inputNeedsGradient;
    private NDArray inputGradient;

    /**
     * Prepares a call.
     *
     * @param function the function; what it makes is attached to the manager of its argument
     * @param failure where the first exception of the backward pass is kept: libtorch passes on
     *     nothing but its message
     */
    public Recomputation(UnaryOperator<NDArray> function, AtomicReference<Throwable> failure) {
        LibTorch.load();
        this.function = function;
        outputHook = new GradientHook(this::recompute, true, failure);
        inputHook = new GradientHook(this::replace, true, failure);
    }

    /**
     * Computes the function.
     *
     * @param x the input
     * @return the output, attached to the manager of the input; a part of the graph if the thread
     *     records one
     */
    public NDArray forward(NDArray x) {
        manager = x.getManager();
        manager.attachInternal(UUID.randomUUID().toString(), this);
        input = Autograd.detach(x, manager);
        inputNeedsGradient = TensorView.of(x).requiresGradient();
        try (NDManager scope = manager.newSubManager();
                PointerScope pointers = new PointerScope()) {
            Tensor y;
            try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                NDArray output = function.apply(Autograd.detach(x, scope));
                y = TensorView.of(output).tensor().detach();
            }
            if (!Autograd.isRecording()) {
                return TensorView.toArray(y, manager);
            }
            Tensor nothing = nothing(x, y);
            Tensor output = y.add(nothing.sum());
            output.register_hook(outputHook);
            return TensorView.toArray(output, manager);
        }
    }

    /** Returns no elements, which depend on the input, or on a leaf if the input needs nothing. */
    private Tensor nothing(NDArray x, Tensor y) {
        if (inputNeedsGradient) {
            Tensor seen = GradientHook.hooked(TensorView.of(x).tensor(), inputHook);
            return seen.reshape(-1).narrow(0, 0, 0);
        }
        Tensor leaf = torch.zeros(new long[] {0}, y.options());
        return leaf.requires_grad_(true);
    }

    private void recompute(Tensor outputGradient) {
        try (NDManager scope = manager.newSubManager()) {
            NDArray x = Autograd.detach(input, scope);
            x.setRequiresGradient(inputNeedsGradient);
            NDArray y;
            try (Autograd.GradMode mode = Autograd.gradMode(true)) {
                y = function.apply(x);
            }
            Autograd.backward(y, TensorView.toArray(outputGradient.detach(), scope));
            if (inputNeedsGradient) {
                inputGradient = Autograd.gradient(x);
                inputGradient.attach(manager);
            }
        }
    }

    private void replace(Tensor gradient) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            gradient.copy_(TensorView.of(inputGradient).tensor());
        }
        inputGradient.close();
        inputGradient = null;
    }

    /** Frees the hooks. No backward pass through the output may follow. */
    @Override
    public void close() {
        for (GradientHook hook : new GradientHook[] {outputHook, inputHook}) {
            hook.release();
            hook.close();
        }
    }
}
