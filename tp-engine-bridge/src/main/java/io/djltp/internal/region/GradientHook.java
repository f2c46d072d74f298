package io.djltp.internal.region;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorBase;
import org.bytedeco.pytorch.TensorTensorHook;
import org.jspecify.annotations.Nullable;

import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;

/**
 * A gradient hook that looks at the gradient, or puts another one in its place, whatever its
 * strides: a sum over other strides may be another one in its last bit.
 *
 * <p>The object must live as long as any graph that it is registered in: libtorch does not keep it
 * alive.
 */
@SuppressWarnings("try") // a scope is used by being open
final class GradientHook extends TensorTensorHook {

    private final UnaryOperator<Tensor> function;
    private final AtomicReference<@Nullable Throwable> failure;
    private @Nullable Tensor result; // kept until libtorch has taken its own reference

    /**
     * Creates a hook.
     *
     * @param function returns the gradient that is passed on
     * @param failure where the first exception is kept: libtorch passes on nothing but its message
     */
    GradientHook(UnaryOperator<Tensor> function, AtomicReference<@Nullable Throwable> failure) {
        this.function = function;
        this.failure = failure;
    }

    /**
     * Returns a hook that changes the gradient: in place where the memory is known to be its own
     * and is contiguous, in a copy otherwise.
     *
     * @param change changes a contiguous gradient in place
     * @param ownsGradient whether the gradient is fresh memory that nothing else reads
     * @param failure where the first exception is kept
     */
    static GradientHook changing(
            Consumer<Tensor> change,
            boolean ownsGradient,
            AtomicReference<@Nullable Throwable> failure) {
        return new GradientHook(
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
     * Returns a view of a tensor that has this hook, if it is in the graph: a hook on the tensor
     * itself would also see gradients of its other consumers.
     */
    Tensor on(Tensor tensor) {
        Tensor view = tensor.view_as(tensor);
        if (view.requires_grad()) {
            view.register_hook(this);
        }
        return view;
    }

    /** {@inheritDoc} */
    @Override
    public TensorBase call(TensorBase gradient) {
        release();
        try (PointerScope scope = new PointerScope()) {
            Tensor passed = new Tensor(function.apply(new Tensor(gradient)));
            result = passed;
            passed.retainReference();
            return passed;
        } catch (Throwable t) {
            failure.compareAndSet(null, t);
            throw t;
        } finally {
            gradient.close(); // this call owns it: not left to the collector
        }
    }

    /** Frees the hook, and the last gradient that was handed over. */
    @Override
    public void close() {
        release();
        super.close();
    }

    private void release() {
        if (result != null) {
            result.close();
            result = null;
        }
    }
}
