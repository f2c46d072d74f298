package io.djltp.torch;

import com.sun.jna.Function;
import com.sun.jna.Platform;
import com.sun.jna.Pointer;

import org.bytedeco.pytorch.Tensor;

/**
 * Reads rows before a product does, so that it finds them in the cache of its core. oneDNN's kernel
 * ({@link Brgemm}) walks over its left factor, and over what it adds to, in steps that the
 * processor does not foresee, and waits for memory at each; one walk from the first element to the
 * last, here the sum of squares by MKL, has the rate of the memory.
 */
final class MemoryFetch {

    /** Rows at a time: with 128 features in float32 half of a cache of 1 MiB. */
    static final long ROWS = 1024;

    /**
     * Some times the cache of a core: what a chunk was put into is smaller and still there. What is
     * larger may be in the last cache, which the processes of a machine share, and is worth the
     * walk too.
     */
    private static final long LEAST_BYTES = 4L << 20;

    private static final String SQUARES = "sdot_"; // of BLAS: float f(int *n, x, int *step, y, ..)
    private static final int[] STEP = {1};

    private static final Function READ = find();

    private MemoryFetch() {}

    private static Function find() {
        try {
            return Platform.isLinux() && Platform.is64Bit() ? LibTorchFunctions.get(SQUARES) : null;
        } catch (UnsatisfiedLinkError e) {
            return null; // products are not MKL's
        }
    }

    /** Returns whether a matrix is part of an array that no cache of a core holds. */
    static boolean isWorthwhile(Tensor matrix) {
        return READ != null && matrix.storage().nbytes() >= LEAST_BYTES;
    }

    /**
     * Reads numbers of 32 bits.
     *
     * @param start the first
     * @param count how many
     */
    static void read(Pointer start, long count) {
        int[] length = {Math.toIntExact(count)};
        READ.invokeFloat(new Object[] {length, start, STEP, start, STEP});
    }
}
