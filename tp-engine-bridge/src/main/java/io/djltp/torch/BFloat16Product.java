package io.djltp.torch;

import com.sun.jna.Function;
import com.sun.jna.Pointer;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * Products of matrices in bfloat16 whose sums are float32, on a processor, in the calling thread.
 *
 * <p>ATen's own product, {@code mm}, rounds its result to the type of its factors. The one that
 * libtorch's attention uses, {@code at::native::cpublas::brgemm}, adds in float32 and into memory
 * that is given, such as a weight; it wants its right factor in pairs of rows ("VNNI"), as the
 * processor multiplies them. The preset does not bind it, and it is looked up by its name, which is
 * that of the version of libtorch that {@link LibTorch} insists on.
 */
public final class BFloat16Product {

    private static final String PRODUCT =
            "_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb";
    private static final String RELEASE = "_ZN2at6native7cpublas14brgemm_releaseEb";

    /**
     * Rows of a call. A thread keeps a compiled kernel for each shape that it has seen: of these
     * rows, and of the powers of two below, which the rest is divided into. A call of 1,024 rows,
     * 64 columns and an inner length of 128 has 80 us of arithmetic, and cost 2 us more.
     */
    private static final long MOST_ROWS = 4096;

    private BFloat16Product() {}

    /** Looked up when the first product is computed. */
    private static final class Functions {

        static final Function MULTIPLY = LibTorchFunctions.get(PRODUCT);
        static final Function GIVE_BACK = LibTorchFunctions.get(RELEASE);
    }

    /**
     * Arranges a right factor.
     *
     * @param matrix the factor, [k, n] with an even k, of any floating type
     * @return what {@link #multiply} takes for it, bfloat16 [k/2, n, 2]
     */
    public static Tensor pack(Tensor matrix) {
        long[] pairs = {matrix.size(0) / 2, 2, matrix.size(1)};
        // rounded before it is arranged: the other way round takes longer
        return matrix.to(ScalarType.BFloat16).reshape(pairs).transpose(1, 2).contiguous();
    }

    /**
     * Computes {@code target = left right}, or {@code target += left right}.
     *
     * @param left the left factor, bfloat16 [m, k], its rows contiguous, with an even k
     * @param packed the right factor, as {@link #pack} returns it
     * @param target where the product goes, float32 [m, n], its rows contiguous
     * @param add whether it is added to what is there
     */
    public static void multiply(Tensor left, Tensor packed, Tensor target, boolean add) {
        long rows = left.size(0);
        long inner = left.size(1);
        long columns = packed.size(1);
        long ofLeft = rows > 1 ? left.stride(0) : inner;
        long ofTarget = rows > 1 ? target.stride(0) : columns;
        long from = left.data_ptr().address();
        long to = target.data_ptr().address();
        Pointer right = new Pointer(packed.data_ptr().address());
        for (long done = 0; done < rows; ) {
            long part = Math.min(MOST_ROWS, Long.highestOneBit(rows - done));
            Functions.MULTIPLY.invoke(
                    new Object[] {
                        part,
                        columns,
                        inner,
                        ofLeft,
                        columns,
                        ofTarget,
                        add ? 1 : 0,
                        new Pointer(from + done * ofLeft * Short.BYTES),
                        right,
                        new Pointer(to + done * ofTarget * Float.BYTES),
                        1
                    });
            done += part;
        }
    }

    /** Gives back what products have set up in the calling thread: the tiles of AMX. */
    public static void release() {
        Functions.GIVE_BACK.invoke(new Object[] {1});
    }
}
