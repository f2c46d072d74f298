package io.djltp.internal.torch;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/**
 * Products of matrices in float32 whose sums are short, in the calling thread.
 *
 * <p>Libtorch's products of float32 are MKL's, which uses AVX-512 on processors of Intel only, and
 * copies its factors before it multiplies them. On others that have AVX-512, oneDNN's kernel
 * ({@link Brgemm}) is faster by a tenth to a quarter, and takes the factors where they lie. As long
 * as a sum has at most {@value #LONGEST} summands, both add them one after another, with one
 * rounding for each: the bits are the same. Where they are not, or MKL is faster, the products here
 * are libtorch's own.
 */
public final class BrgemmProduct {

    private static final String PRODUCT = "_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb";

    /** What MKL divides otherwise; and of few summands, rows or columns its kernels are others. */
    private static final long LONGEST = 192;

    private static final long SHORTEST = 8;
    private static final long NARROWEST = 16;

    private static final long MOST_ROWS = 1024; // of a call

    private static final Brgemm MULTIPLY = find();

    private BrgemmProduct() {}

    private static Brgemm find() {
        try {
            return OneDnnProduct.hasFasterKernels()
                    ? new Brgemm(PRODUCT, Float.BYTES, MOST_ROWS, false)
                    : null;
        } catch (UnsatisfiedLinkError e) {
            return null; // another platform
        }
    }

    /** {@return whether there are products here that are not libtorch's own} */
    static boolean isFaster() {
        return MULTIPLY != null;
    }

    /**
     * Computes {@code target = left right}, with the bits of libtorch's {@code mm}.
     *
     * @param left the left factor, float32 [m, k]
     * @param right the right factor, float32 [k, n]
     * @param target where the product goes, float32 [m, n]
     */
    public static void multiply(Tensor left, Tensor right, Tensor target) {
        if (fits(left, right, target)) {
            MULTIPLY.run(left, right, target, false);
        } else {
            torch.mm_out(target, left, right);
        }
    }

    /**
     * Computes {@code target = keep target + factor left right}, with the bits of libtorch's {@code
     * addmm}.
     *
     * @param left the left factor, float32 [m, k]
     * @param right the right factor, float32 [k, n]
     * @param target what is added to, float32 [m, n]
     * @param keep the factor of the target; what it is multiplied with 0 need not be a number
     * @param factor the factor of the product
     */
    public static void add(Tensor left, Tensor right, Tensor target, float keep, float factor) {
        if ((keep == 0 || keep == 1) && fits(left, right, target)) {
            // as MKL, which multiplies the factor that it copies
            MULTIPLY.run(left, right.mul(new Scalar(factor)), target, keep == 1);
        } else {
            target.addmm_(left, right, new Scalar(keep), new Scalar(factor));
        }
    }

    private static boolean fits(Tensor left, Tensor right, Tensor target) {
        long sum = left.size(1);
        return MULTIPLY != null
                && sum >= SHORTEST
                && sum <= LONGEST
                && left.size(0) >= NARROWEST
                && right.size(1) >= NARROWEST
                && left.stride(1) == 1
                && right.stride(1) == 1
                && target.stride(1) == 1
                && !target.is_cuda();
    }
}
