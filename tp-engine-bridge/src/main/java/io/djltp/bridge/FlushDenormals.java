package io.djltp.bridge;

import org.bytedeco.pytorch.Context;

/**
 * Lets the processor take numbers below the smallest normal one, 1.2e-38 in float32, for zero in
 * the calling thread until it is closed. It computes with them a hundred times as slowly, and the
 * exponentials of a trained head are full of them.
 */
final class FlushDenormals implements AutoCloseable {

    FlushDenormals() {
        Context.setFlushDenormal(true); // false where the processor cannot
    }

    /** Computes with small numbers again: Java does. */
    @Override
    public void close() {
        Context.setFlushDenormal(false);
    }
}
