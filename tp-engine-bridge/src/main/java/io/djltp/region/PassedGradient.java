package io.djltp.region;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorBase;
import org.bytedeco.pytorch.TensorTensorHook;

import java.util.concurrent.atomic.AtomicReference;
import java.util.function.UnaryOperator;

/**
 * A gradient hook that looks at the gradient, or puts another one in its place, whatever its
 * strides: a sum over other strides may be another one in its last bit.
 *
 * <p>The object must live as long as any graph that it is registered in: libtorch does not keep it
 * alive.
 */
@SuppressWarnings("try") // a scope is used by being open
class PassedGradient extends TensorTensorHook {

    private final UnaryOperator<Tensor> function;
    private final AtomicReference<Throwable> failure;
    private Tensor result; // kept until libtorch has taken its own reference

    /**
     * Creates a hook.
     *
     * @param function returns the gradient that is passed on
     * @param failure where the first exception is kept: libtorch passes on nothing but its message
     */
    PassedGradient(UnaryOperator<Tensor> function, AtomicReference<Throwable> failure) {
        this.function = function;
        this.failure = failure;
    }

    /** {@inheritDoc} */
    @Override
    public final TensorBase call(TensorBase gradient) {
        release();
        try (PointerScope scope = new PointerScope()) {
            result = new Tensor(function.apply(new Tensor(gradient)));
            result.retainReference();
            return result;
        } catch (Throwable t) {
            failure.compareAndSet(null, t);
            throw t;
        } finally {
            gradient.close(); // this call owns it: not left to the collector
        }
    }

    /** Frees the hook, and the last gradient that was handed over. */
    @Override
    public final void close() {
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
