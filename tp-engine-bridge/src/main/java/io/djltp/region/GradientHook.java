package io.djltp.region;

import io.djltp.internal.torch.TensorView;

import org.bytedeco.pytorch.Tensor;

import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;

/**
 * A gradient hook that changes the gradient: in place where the memory is known to be its own and
 * is contiguous, in a copy otherwise.
 */
final class GradientHook extends PassedGradient {

    /**
     * Creates a hook.
     *
     * @param change changes a contiguous gradient in place
     * @param ownsGradient whether the gradient is fresh memory that nothing else reads
     * @param failure where the first exception is kept: libtorch passes on nothing but its message
     */
    GradientHook(
            Consumer<Tensor> change, boolean ownsGradient, AtomicReference<Throwable> failure) {
        super(
                gradient -> {
                    Tensor changed = gradient;
                    if (!gradient.is_contiguous()) {
                        changed = gradient.contiguous();
                    } else if (!ownsGradient) {
                        changed = gradient.clone();
                    }
                    change.accept(changed);
                    return changed;
                },
                failure);
    }

    /**
     * Returns a view of a tensor that has a hook, if it is in the graph: a hook on the tensor
     * itself would also see gradients of its other consumers.
     */
    static Tensor hooked(Tensor tensor, GradientHook hook) {
        Tensor view = tensor.reshape(TensorView.of(tensor).getShape().getShape());
        if (view.requires_grad()) {
            view.register_hook(hook);
        }
        return view;
    }
}
