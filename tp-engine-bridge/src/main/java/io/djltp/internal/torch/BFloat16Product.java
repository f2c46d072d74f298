package io.djltp.internal.torch;

import com.sun.jna.Function;

import io.djltp.internal.libtorch.LibTorchFunctions;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * Products of matrices in bfloat16 whose sums are float32, on a processor, in the calling thread.
 *
 * <p>ATen's own product, {@code mm}, rounds its result to the type of its factors. The one that
 * libtorch's attention uses ({@link Brgemm}) adds in float32 and into memory that is given, such as
 * a weight; it wants its right factor in pairs of rows ("VNNI"), as the processor multiplies them.
 */
public final class BFloat16Product {

    private static final String PRODUCT =
            "_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb";
    private static final String RELEASE = "_ZN2at6native7cpublas14brgemm_releaseEb";

    /**
     * Rows of a call. One of 1,024 rows, 64 columns and an inner length of 128 has 80 us of
     * arithmetic, and cost 2 us more.
     */
    private static final long MOST_ROWS = 4096;

    private BFloat16Product() {}

    /** Looked up when the first product is computed. */
    private static final class Functions {

        static final Brgemm MULTIPLY = new Brgemm(PRODUCT, Short.BYTES, MOST_ROWS, true);
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
        Functions.MULTIPLY.run(left, packed, target, add);
    }

    /** Gives back what products have set up in the calling thread: the tiles of AMX. */
    public static void release() {
        Functions.GIVE_BACK.invoke(new Object[] {1});
    }
}
