package io.djltp.internal.torch;

import com.sun.jna.Function;
import com.sun.jna.Platform;
import com.sun.jna.Pointer;

import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.libtorch.LibTorchFunctions;

import org.bytedeco.pytorch.Tensor;

/**
 * A product of matrices by {@code at::native::cpublas::brgemm}, which libtorch's attention uses: in
 * the calling thread, from factors where they lie, with sums in float32. The preset does not bind
 * it, and it is looked up by its name, which is that of the version of libtorch that {@link
 * LibTorch} insists on.
 *
 * <p>oneDNN's kernel walks over its left factor, and over what it adds to, in steps that the
 * processor does not foresee, and waits for memory at each. So rows that no cache holds are read
 * before: one walk from the first element to the last, here the sum of squares by MKL, has the rate
 * of the memory, and leaves them in the cache of the core.
 */
final class Brgemm {

    /** Rows at a time: with 128 features in float32 half of a cache of 1 MiB. */
    static final long PREFETCHED_ROWS = 1024;

    /**
     * Some times the cache of a core: what a chunk was put into is smaller and still there. What is
     * larger may be in the last cache, which the processes of a machine share, and is worth the
     * walk too.
     */
    private static final long LEAST_BYTES = 4L << 20;

    private static final String SQUARES = "sdot_"; // of BLAS: float f(int *n, x, int *step, y, ..)
    private static final int[] STEP = {1};

    private static final Function READ = find();

    private final Function multiply;
    private final int bytes;
    private final long mostRows;
    private final boolean packed;

    /**
     * Looks the function up.
     *
     * @param symbol its symbol, which says the type of the factors
     * @param bytes the bytes of an element of that type
     * @param mostRows rows of a call. A thread keeps a compiled kernel for each shape that it has
     *     seen: of these rows, and of the powers of two below, which the rest is divided into
     * @param packed whether the right factor is in pairs of rows ("VNNI")
     * @throws UnsatisfiedLinkError if there is none of this name, as on Windows
     */
    Brgemm(String symbol, int bytes, long mostRows, boolean packed) {
        multiply = LibTorchFunctions.get(symbol);
        this.bytes = bytes;
        this.mostRows = mostRows;
        this.packed = packed;
    }

    /**
     * Computes {@code target = left right}, or {@code target += left right}.
     *
     * @param left the left factor, [m, k], its rows contiguous
     * @param right the right factor, [k, n], its rows contiguous; if packed [k/2, n, 2]
     * @param target where the product goes, float32 [m, n], its rows contiguous
     * @param add whether it is added to what is there
     */
    void run(Tensor left, Tensor right, Tensor target, boolean add) {
        long rows = left.size(0);
        long inner = left.size(1);
        long columns = right.size(1);
        long ofLeft = rows > 1 ? left.stride(0) : inner;
        long ofTarget = rows > 1 ? target.stride(0) : columns;
        long from = left.data_ptr().address();
        long to = target.data_ptr().address();
        Pointer factor = new Pointer(right.data_ptr().address());
        boolean farLeft = isFar(left);
        boolean farTarget = add && isFar(target);
        long most = farLeft || farTarget ? Math.min(mostRows, PREFETCHED_ROWS) : mostRows;
        for (long done = 0; done < rows; ) {
            long part = Math.min(most, Long.highestOneBit(rows - done));
            Pointer ofRows = new Pointer(from + done * ofLeft * bytes);
            Pointer into = new Pointer(to + done * ofTarget * Float.BYTES);
            if (farLeft) {
                prefetch(ofRows, ((part - 1) * ofLeft + inner) * bytes / Float.BYTES);
            }
            if (farTarget) {
                prefetch(into, (part - 1) * ofTarget + columns);
            }
            multiply.invoke(
                    new Object[] {
                        part,
                        columns,
                        inner,
                        ofLeft,
                        packed ? columns : right.stride(0),
                        ofTarget,
                        add ? 1 : 0,
                        ofRows,
                        factor,
                        into,
                        packed ? 1 : 0
                    });
            done += part;
        }
    }

    private static Function find() {
        try {
            return Platform.isLinux() && Platform.is64Bit() ? LibTorchFunctions.get(SQUARES) : null;
        } catch (UnsatisfiedLinkError e) {
            return null; // products are not MKL's
        }
    }

    /** Returns whether a matrix is part of an array that no cache of a core holds. */
    static boolean isFar(Tensor matrix) {
        return READ != null && matrix.storage().nbytes() >= LEAST_BYTES;
    }

    /**
     * Reads numbers of 32 bits.
     *
     * @param start the first
     * @param count how many
     */
    private static void prefetch(Pointer start, long count) {
        int[] length = {Math.toIntExact(count)};
        READ.invokeFloat(new Object[] {length, start, STEP, start, STEP});
    }
}
