package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

import io.djltp.internal.libtorch.LibTorch;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.NoGradGuard;
import org.bytedeco.pytorch.Tensor;
import org.jspecify.annotations.Nullable;

import java.util.function.Supplier;

/**
 * Where public methods begin to work with tensors of the preset: frees those that are made until it
 * is closed.
 *
 * <p>No object of the preset may be made before {@link LibTorch#load()}: the first one makes
 * JavaCPP load a libtorch, and unless it was told of DJL's that is its own, which ends the JVM.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class TorchScope implements AutoCloseable {

    private final PointerScope pointers;
    private final @Nullable NoGradGuard noGrad;

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

    /**
     * Computes a tensor in a scope of its own, and hands it to DJL.
     *
     * @param manager the manager that the array is attached to
     * @param computation computes the tensor, recorded for autograd as the thread is set to
     * @return the array
     */
    public static NDArray array(NDManager manager, Supplier<Tensor> computation) {
        try (TorchScope scope = open()) {
            return TensorView.toArray(computation.get(), manager);
        }
    }

    /**
     * Computes a tensor in a scope of its own, and hands it to DJL.
     *
     * @param manager the manager that the array is attached to
     * @param computation computes the tensor, which autograd does not see
     * @return the array
     */
    public static NDArray arrayWithoutGraph(NDManager manager, Supplier<Tensor> computation) {
        try (TorchScope scope = withoutGraph()) {
            return TensorView.toArray(computation.get(), manager);
        }
    }

    /**
     * Returns whether what the calling thread makes may be freed by a scope that it has open, of
     * the preset's tensors or of DJL's arrays.
     *
     * @return whether there is one
     */
    public static boolean isOpen() {
        return PointerScope.getInnerScope() != null || JavaMemory.isInScope();
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
