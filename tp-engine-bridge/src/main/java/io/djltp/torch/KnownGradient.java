package io.djltp.torch;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorBase;
import org.bytedeco.pytorch.TensorTensorHook;

import java.util.function.DoubleConsumer;

/** A gradient hook that answers with a gradient computed before, times what comes from above. */
@SuppressWarnings("try") // a scope is used by being open
final class KnownGradient extends TensorTensorHook {

    private final Tensor gradient;
    private final DoubleConsumer listener; // null if what comes from above is told to nobody
    private boolean taken;

    KnownGradient(Tensor gradient, DoubleConsumer listener) {
        this.gradient = new Tensor(gradient); // a reference of its own: the array may be closed
        this.listener = listener;
    }

    /** {@inheritDoc} */
    @Override
    public TensorBase call(TensorBase above) {
        try (PointerScope scope = new PointerScope()) {
            if (taken) {
                throw new IllegalStateException("A second backward pass through the same loss");
            }
            taken = true;
            Tensor scale = new Tensor(above); // one element, expanded to the shape of the input
            while (scale.dim() > 0) {
                scale = scale.select(0, 0);
            }
            double read = 0;
            if (listener != null || !scale.is_cuda()) {
                read = HostReads.number(scale);
            }
            if (listener != null) {
                listener.accept(read);
            }
            if (read != 1) {
                gradient.mul_(scale);
            }
        } finally {
            above.close(); // this call owns it: not left to the collector
        }
        return gradient;
    }

    boolean releaseIfTaken() {
        if (taken) {
            release();
        }
        return taken;
    }

    void release() {
        gradient.close();
        close();
    }
}
