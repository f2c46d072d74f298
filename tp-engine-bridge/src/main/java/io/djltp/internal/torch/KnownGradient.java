package io.djltp.internal.torch;

import ai.djl.ndarray.NDManager;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorBase;
import org.bytedeco.pytorch.TensorTensorHook;

import java.util.Map;
import java.util.UUID;
import java.util.function.DoubleConsumer;

/**
 * A gradient hook that answers with a gradient computed before, times what comes from above. It is
 * freed with the manager of the pass at the latest, by the thread that closes it: a pass may be
 * given up without a backward pass.
 */
@SuppressWarnings("try") // a scope is used by being open
final class KnownGradient extends TensorTensorHook {

    private final Tensor gradient;
    private final DoubleConsumer listener; // null if what comes from above is told to nobody
    private final NDManager pass;
    private final Map<String, KnownGradient> kept; // has this until it is freed
    private final String id = UUID.randomUUID().toString();
    private boolean taken;
    private boolean released;

    KnownGradient(
            Tensor gradient,
            DoubleConsumer listener,
            NDManager pass,
            Map<String, KnownGradient> kept) {
        this.gradient = new Tensor(gradient); // a reference of its own: the array may be closed
        this.listener = listener;
        this.pass = pass;
        this.kept = kept;
        kept.put(id, this);
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

    synchronized boolean isTaken() {
        return taken;
    }

    synchronized void release() {
        if (!released) {
            released = true;
            kept.remove(id);
            pass.detachInternal(id);
            gradient.close();
            close();
        }
    }
}
