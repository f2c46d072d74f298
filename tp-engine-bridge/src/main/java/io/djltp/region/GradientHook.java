package io.djltp.region;

import io.djltp.torch.TensorView;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorBase;
import org.bytedeco.pytorch.TensorTensorHook;

import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;

/**
 * A gradient hook that changes the gradient: in place where the memory is known to be its own and
 * is contiguous, in a copy otherwise.
 *
 * <p>The object must live as long as any graph that it is registered in: libtorch does not keep it
 * alive.
 */
@SuppressWarnings("try") // a scope is used by being open
final class GradientHook extends TensorTensorHook {

    private final Consumer<Tensor> change;
    private final boolean ownsGradient;
    private final AtomicReference<Throwable> failure;
    private Tensor result; // kept until libtorch has taken its own reference

    /**
     * Creates a hook.
     *
     * @param change changes a contiguous gradient in place
     * @param ownsGradient whether the gradient is fresh memory that nothing else reads
     * @param failure where the first exception is kept: libtorch passes on nothing but its message
     */
    GradientHook(
            Consumer<Tensor> change, boolean ownsGradient, AtomicReference<Throwable> failure) {
        this.change = change;
        this.ownsGradient = ownsGradient;
        this.failure = failure;
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

    /** {@inheritDoc} */
    @Override
    public TensorBase call(TensorBase gradient) {
        release();
        try (PointerScope scope = new PointerScope()) {
            Tensor tensor = new Tensor(gradient);
            Tensor changed = tensor;
            if (!tensor.is_contiguous()) {
                changed = tensor.contiguous();
            } else if (!ownsGradient) {
                changed = tensor.clone();
            }
            change.accept(changed);
            result = changed.retainReference();
            return result;
        } catch (Throwable t) {
            failure.compareAndSet(null, t);
            throw t;
        } finally {
            gradient.close(); // this call owns it: not left to the collector
        }
    }

    /** Frees the last gradient that was handed over. */
    void release() {
        if (result != null) {
            result.close();
            result = null;
        }
    }
}
