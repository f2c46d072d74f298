package io.djltp.internal.torch;

import com.sun.jna.Function;
import com.sun.jna.Platform;

import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.libtorch.LibTorchFunctions;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * Products of matrices by {@code at::native::cpublas::brgemm}, oneDNN's kernel that libtorch's
 * attention uses: on a processor, in the calling thread, from factors where they lie, with sums in
 * float32. The preset does not bind it, and it is looked up by its name, which is that of the
 * version of libtorch that {@link LibTorch} insists on.
 *
 * <p>In float32, libtorch's own products are MKL's, which uses AVX-512 on processors of Intel only,
 * and copies its factors before it multiplies them. On others that have AVX-512, oneDNN's kernel is
 * faster by a tenth to a quarter. As long as a sum has at most {@value #LONGEST} summands, both add
 * them one after another, with one rounding for each: the bits are the same. Where they are not, or
 * MKL is faster, the products here are libtorch's own.
 *
 * <p>In bfloat16, ATen's own product, {@code mm}, rounds its result to the type of its factors.
 * This one adds in float32 and into memory that is given, such as a weight; it wants its right
 * factor in pairs of rows ("VNNI"), as the processor multiplies them.
 *
 * <p>The kernel walks over its left factor, and over what it adds to, in steps that the processor
 * does not foresee, and waits for memory at each. So rows that no cache holds are read before: one
 * walk from the first element to the last, here the sum of squares by MKL, has the rate of the
 * memory, and leaves them in the cache of the core. Zen 5 foresees the steps over a left factor
 * alone.
 */
public final class Brgemm {

    /** What MKL divides otherwise; and of few summands, rows or columns its kernels are others. */
    private static final long LONGEST = 192;

    private static final long SHORTEST = 8;
    private static final long NARROWEST = 16;

    /** Rows at a time: with 128 features in float32 half of a cache of 1 MiB. */
    private static final long PREFETCHED_ROWS = 1024;

    /**
     * Some times the cache of a core: what a chunk was put into is smaller and still there. What is
     * larger may be in the last cache, which the processes of a machine share, and is worth the
     * walk too.
     */
    private static final long LEAST_BYTES = 4L << 20;

    private static final String FLOAT32_NAME = "_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb";

    private static final int[] STEP = {1};

    /** On Zen 5, the walk over a left factor of 1 MiB takes 31 us, and saves the product 9 us. */
    private static final boolean FORESEES_LEFT =
            OneDnnLinear.processor().contains("cpu family\t: 26\n");

    private static final boolean IS_FASTER = OneDnnLinear.hasFasterKernels() && Direct.IS_BOUND;

    /**
     * Rows of a call. A thread keeps a compiled kernel for each shape that it has seen: of these
     * rows, and of the powers of two below, which the rest is divided into.
     */
    private static final long ROWS = 1024;

    /**
     * In bfloat16. A call of 1,024 rows, 64 columns and an inner length of 128 has 80 us of
     * arithmetic, and cost 2 us more.
     */
    private static final long PACKED_ROWS = 4096;

    private Brgemm() {}

    /** The products in float32. A call costs a tenth of one of a {@link Function}. */
    public static final class Direct {

        /** Whether there are such products here. */
        public static final boolean IS_BOUND = LibTorchFunctions.bind(Direct.class, FLOAT32_NAME);

        private Direct() {}

        /**
         * Computes {@code c = a b}, or {@code c += a b}, of float32 at addresses, in the calling
         * thread.
         *
         * @param m the rows of a and c
         * @param n the columns of b and c
         * @param k the columns of a, and the rows of b
         * @param strideOfA how many numbers the rows of a are apart
         * @param strideOfB how many numbers the rows of b are apart
         * @param strideOfC how many numbers the rows of c are apart
         * @param add whether the product is added to what is there
         * @param a the address of a
         * @param b the address of b
         * @param c the address of c
         * @param inPairs false, as b is not in pairs of rows
         */
        public static native void multiply(
                long m,
                long n,
                long k,
                long strideOfA,
                long strideOfB,
                long strideOfC,
                boolean add,
                long a,
                long b,
                long c,
                boolean inPairs);
    }

    /** Looked up when the first product in bfloat16 is computed. */
    private static final class InBFloat16 {

        static final Function GIVE_BACK =
                LibTorchFunctions.get("_ZN2at6native7cpublas14brgemm_releaseEb");

        static {
            String name = "_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb";
            if (!LibTorchFunctions.bind(InBFloat16.class, name)) {
                LibTorchFunctions.get(name); // which says what is missing
            }
        }

        private InBFloat16() {}

        static native void multiply(
                long m,
                long n,
                long k,
                long strideOfA,
                long strideOfB,
                long strideOfC,
                boolean add,
                long a,
                long b,
                long c,
                boolean inPairs);
    }

    /** Sums of squares, whose computation reads numbers of 32 bits from the first to the last. */
    private static final class Squares {

        static final boolean IS_BOUND =
                Platform.isLinux()
                        && Platform.is64Bit()
                        && LibTorchFunctions.bind(Squares.class, "sdot_");

        private Squares() {}

        /** {@code float sdot_(int *n, float *x, int *step, float *y, int *step)} of BLAS. */
        static native float of(int[] count, long x, int[] step, long y, int[] sameStep);
    }

    /** {@return whether there are products in float32 here that are not libtorch's own} */
    static boolean isFaster() {
        return IS_FASTER;
    }

    /**
     * Computes {@code target = left right}, with the bits of libtorch's {@code mm}.
     *
     * @param left the left factor, float32 [m, k]
     * @param right the right factor, float32 [k, n]
     * @param target where the product goes, float32 [m, n]
     */
    public static void multiply(Tensor left, Tensor right, Tensor target) {
        if (isFaster(left, right, target)) {
            add(left, right, target, false, false);
        } else {
            torch.mm_out(target, left, right);
        }
    }

    /**
     * Returns whether {@link #add} computes a product here, and faster than libtorch.
     *
     * @param left the left factor, float32 [m, k]
     * @param right the right factor, float32 [k, n]
     * @param target what is added to, float32 [m, n]
     * @return whether it does
     */
    public static boolean isFaster(Tensor left, Tensor right, Tensor target) {
        return IS_FASTER && fits(left, right, target);
    }

    /**
     * Computes {@code target = left right}, or {@code target += left right}, with the bits of
     * libtorch's {@code addmm} where {@link #isFaster(Tensor, Tensor, Tensor)}.
     *
     * @param left the left factor, float32 [m, k]
     * @param right the right factor, float32 [k, n]
     * @param target where the product goes, float32 [m, n]
     * @param add whether it is added to what is there
     * @param isNear whether the target has just been read, and is in a cache
     */
    public static void add(Tensor left, Tensor right, Tensor target, boolean add, boolean isNear) {
        run(false, left, right, target, add, isNear);
    }

    private static boolean fits(Tensor left, Tensor right, Tensor target) {
        long sum = left.size(1);
        return sum >= SHORTEST
                && sum <= LONGEST
                && left.size(0) >= NARROWEST
                && right.size(1) >= NARROWEST
                && left.stride(1) == 1
                && right.stride(1) == 1
                && target.stride(1) == 1
                && !target.is_cuda();
    }

    /**
     * Arranges the right factor of a product in bfloat16.
     *
     * @param matrix the factor, [k, n] with an even k, of any floating type
     * @return what {@link #multiplyPacked} takes for it, bfloat16 [k/2, n, 2]
     */
    public static Tensor pack(Tensor matrix) {
        long[] pairs = {matrix.size(0) / 2, 2, matrix.size(1)};
        // rounded before it is arranged: the other way round takes longer
        return matrix.to(ScalarType.BFloat16).reshape(pairs).transpose(1, 2).contiguous();
    }

    /**
     * Computes {@code target = left right}, or {@code target += left right}, of factors in
     * bfloat16.
     *
     * @param left the left factor, bfloat16 [m, k], its rows contiguous, with an even k
     * @param packed the right factor, as {@link #pack} returns it
     * @param target where the product goes, float32 [m, n], its rows contiguous
     * @param add whether it is added to what is there
     * @param isNear whether the target has just been read, and is in a cache
     */
    public static void multiplyPacked(
            Tensor left, Tensor packed, Tensor target, boolean add, boolean isNear) {
        run(true, left, packed, target, add, isNear);
    }

    /** Gives back what products in bfloat16 have set up in the calling thread: the tiles of AMX. */
    public static void release() {
        InBFloat16.GIVE_BACK.invoke(new Object[] {1});
    }

    /** Returns whether a matrix is part of an array that no cache of a core holds. */
    static boolean isFar(Tensor matrix) {
        return Squares.IS_BOUND && matrix.storage().nbytes() >= LEAST_BYTES;
    }

    private static void prefetch(long start, long count) {
        Squares.of(new int[] {Math.toIntExact(count)}, start, STEP, start, STEP);
    }

    /**
     * Computes {@code target = left right}, or {@code target += left right}.
     *
     * @param packed whether the factors are in bfloat16, and the right one is in pairs of rows
     * @param left the left factor, [m, k], its rows contiguous
     * @param right the right factor, [k, n], its rows contiguous; if packed [k/2, n, 2]
     * @param target where the product goes, float32 [m, n], its rows contiguous
     * @param add whether it is added to what is there
     * @param isNear whether the target has just been read
     */
    private static void run(
            boolean packed, Tensor left, Tensor right, Tensor target, boolean add, boolean isNear) {
        long bytes = packed ? Short.BYTES : Float.BYTES;
        long mostRows = packed ? PACKED_ROWS : ROWS;
        long rows = left.size(0);
        long k = left.size(1);
        long n = right.size(1);
        long ofLeft = rows > 1 ? left.stride(0) : k;
        long ofRight = packed ? n : right.stride(0);
        long ofTarget = rows > 1 ? target.stride(0) : n;
        long from = left.data_ptr().address();
        long to = target.data_ptr().address();
        long factor = right.data_ptr().address();
        boolean farTarget = add && !isNear && isFar(target);
        boolean farLeft = (farTarget || !FORESEES_LEFT) && isFar(left);
        long most = farLeft || farTarget ? Math.min(mostRows, PREFETCHED_ROWS) : mostRows;
        for (long done = 0, m; done < rows; done += m) {
            m = Math.min(most, Long.highestOneBit(rows - done));
            long a = from + done * ofLeft * bytes;
            long c = to + done * ofTarget * Float.BYTES;
            if (farLeft) {
                prefetch(a, ((m - 1) * ofLeft + k) * bytes / Float.BYTES);
            }
            if (farTarget) {
                prefetch(c, (m - 1) * ofTarget + n);
            }
            if (packed) {
                InBFloat16.multiply(m, n, k, ofLeft, ofRight, ofTarget, add, a, factor, c, true);
            } else {
                Direct.multiply(m, n, k, ofLeft, ofRight, ofTarget, add, a, factor, c, false);
            }
        }
    }
}
