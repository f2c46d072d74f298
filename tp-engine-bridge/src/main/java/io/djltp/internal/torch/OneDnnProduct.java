package io.djltp.internal.torch;

import com.sun.jna.Function;
import com.sun.jna.Platform;
import com.sun.jna.Pointer;

import io.djltp.internal.libtorch.LibTorchFunctions;
import io.djltp.internal.libtorch.ProcessorArithmetic;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Products of matrices in float32 by oneDNN, which libtorch brings along, in all threads of the
 * calling one. Libtorch's own are MKL's, which uses AVX-512 on processors of Intel only; on others
 * that have it, oneDNN is faster.
 *
 * <p>Both add products of float32 in float32, but in another order: the bits differ, the bound of
 * the error is the same, \(k u / (1 - k u)\) times the product of the absolute values for sums of k
 * summands in any order, with \(u = 2^{-24}\). (Higham, Accuracy and Stability of Numerical
 * Algorithms, 2002, section 3.1.)
 *
 * <p>OneDNN compiles a kernel for each shape, which takes a millisecond and some 300 KiB. A batch
 * of any number of rows is therefore computed in parts of a power of two.
 */
public final class OneDnnProduct {

    /**
     * The system property that leaves all products to libtorch when it is {@code libtorch}. With
     * {@code onednn} no product is too small: for tests.
     */
    public static final String PROPERTY = "io.djltp.products";

    // void at::native::mkldnn_matmul(left, right, target, float beta, float alpha)
    private static final String PRODUCT = "_ZN2at6native13mkldnn_matmulERKNS_6TensorES3_S3_ff";
    private static final String AVX512 = "_ZN2at3cpu19is_avx512_supportedEv";

    private static final boolean ALWAYS = "onednn".equals(System.getProperty(PROPERTY));

    /** Smaller ones are faster by MKL, or as fast. */
    private static final long FEWEST_ROWS = ALWAYS ? 1 : 32;

    private static final long FEWEST_OPERATIONS = ALWAYS ? 1 : 1L << 25; // multiply and add

    private static final Function MULTIPLY = find();

    private OneDnnProduct() {}

    private static Function find() {
        boolean wanted = !"libtorch".equals(System.getProperty(PROPERTY));
        try {
            return wanted && hasFasterKernels() ? LibTorchFunctions.get(PRODUCT) : null;
        } catch (UnsatisfiedLinkError e) {
            return null; // another platform
        }
    }

    /**
     * Returns whether oneDNN has kernels of AVX-512 here, and MKL does not use its own.
     *
     * @throws UnsatisfiedLinkError if libtorch does not say it, on another platform
     */
    static boolean hasFasterKernels() {
        return Platform.isLinux()
                && Platform.is64Bit()
                && !isOfIntel()
                && ProcessorArithmetic.limit(System.getenv()).isEmpty()
                && (LibTorchFunctions.get(AVX512).invokeInt(new Object[0]) & 0xff) != 0;
    }

    private static boolean isOfIntel() {
        try {
            String text = Files.readString(Path.of("/proc/cpuinfo"), StandardCharsets.UTF_8);
            return text.contains("GenuineIntel");
        } catch (IOException e) {
            return true; // not known: as it would be without all this
        }
    }

    /**
     * Returns whether layers have large products from here.
     *
     * @return {@code false} if all are libtorch's own
     */
    public static boolean isUsed() {
        return MULTIPLY != null;
    }

    /**
     * Returns whether the products of a layer are faster here than libtorch's own.
     *
     * @param rows the rows of the input
     * @param in its features
     * @param out the features of the output
     */
    static boolean isFaster(long rows, long in, long out) {
        return MULTIPLY != null && rows >= FEWEST_ROWS && rows * in * out >= FEWEST_OPERATIONS;
    }

    /**
     * Computes {@code target = left right}, a part of the rows after another.
     *
     * @param left the left factor, float32 [m, k], contiguous
     * @param right the right factor, float32 [k, n], contiguous or a transposed contiguous one
     * @param target where the product goes, float32 [m, n], contiguous
     */
    static void multiply(Tensor left, Tensor right, Tensor target) {
        long rows = left.size(0);
        for (long done = 0, part; done < rows; done += part) {
            part = nextPart(rows - done);
            Tensor from = left.narrow(0, done, part);
            Tensor to = target.narrow(0, done, part);
            if (part >= FEWEST_ROWS) {
                run(from, right, to, false);
            } else {
                torch.mm_out(to, from, right);
            }
        }
    }

    /**
     * Computes {@code target = left^T right}, a part of the summands after another.
     *
     * @param left the left factor, float32 [k, m], contiguous
     * @param right the right factor, float32 [k, n], contiguous
     * @param target where the product goes, float32 [m, n], contiguous
     */
    static void multiplyTransposed(Tensor left, Tensor right, Tensor target) {
        long rows = left.size(0);
        for (long done = 0, part; done < rows; done += part) {
            part = nextPart(rows - done);
            Tensor from = left.narrow(0, done, part).t();
            Tensor other = right.narrow(0, done, part);
            if (part >= FEWEST_ROWS) {
                run(from, other, target, done > 0);
            } else {
                target.addmm_(from, other, new Scalar(done > 0 ? 1f : 0f), new Scalar(1f));
            }
        }
    }

    private static long nextPart(long rows) {
        return rows < FEWEST_ROWS ? rows : Long.highestOneBit(rows);
    }

    private static void run(Tensor left, Tensor right, Tensor target, boolean add) {
        MULTIPLY.invokeVoid(
                new Object[] {
                    new Pointer(left.address()),
                    new Pointer(right.address()),
                    new Pointer(target.address()),
                    add ? 1f : 0f,
                    1f
                });
    }
}
