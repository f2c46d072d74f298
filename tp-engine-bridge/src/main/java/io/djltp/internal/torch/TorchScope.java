package io.djltp.internal.torch;

import io.djltp.internal.libtorch.LibTorch;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.NoGradGuard;

/**
 * Where public methods begin to work with tensors of the preset: frees those that are made until it
 * is closed.
 *
 * <p>No object of the preset may be made before {@link LibTorch#load()}: the first one makes
 * JavaCPP load a libtorch, and unless it was told of DJL's that is its own, which ends the JVM.
 */
public final class TorchScope implements AutoCloseable {

    private final PointerScope pointers;
    private final NoGradGuard noGrad; // or null

    private TorchScope(boolean recording) {
        LibTorch.load(); // may be the first call of all
        pointers = new PointerScope();
        noGrad = recording ? null : new NoGradGuard();
    }

    /**
     * Opens a scope whose operations are recorded for autograd as the thread is set to.
     *
     * @return the scope
     */
    public static TorchScope open() {
        return new TorchScope(true);
    }

    /**
     * Opens a scope whose operations autograd does not see.
     *
     * @return the scope
     */
    public static TorchScope withoutGraph() {
        return new TorchScope(false);
    }

    /** Frees what was made, and records again what was recorded before. */
    @Override
    public void close() {
        if (noGrad != null) {
            noGrad.close();
        }
        pointers.close();
    }
}
