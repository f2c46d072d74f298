package io.djltp.internal.torch;

import io.djltp.internal.libtorch.LibTorch;

import org.bytedeco.pytorch.Context;

/**
 * Lets the processor take numbers below the smallest normal one, 1.2e-38 in float32, for zero in
 * the calling thread until it is closed. It computes with them a hundred times as slowly, and the
 * exponentials of a trained head are full of them.
 */
public final class FlushDenormals implements AutoCloseable {

    // not a constant: a product of constants would be computed by the compiler, in its own thread
    private static volatile float half = 0.5f;

    private final boolean before = isOn();

    /** Takes small numbers for zero in the calling thread, until it is closed. */
    public FlushDenormals() {
        LibTorch.load(); // may be the first call of all
        Context.setFlushDenormal(true); // false where the processor cannot
    }

    /**
     * Returns whether the calling thread takes small numbers for zero: Java computes as it is set.
     */
    static boolean isOn() {
        return Float.MIN_NORMAL * half == 0;
    }

    /** Computes with small numbers again, unless the thread did not before. */
    @Override
    public void close() {
        Context.setFlushDenormal(before);
    }
}
