package io.djltp.internal.torch;

import ai.djl.engine.EngineException;

import com.sun.jna.Function;
import com.sun.jna.Pointer;
import com.sun.jna.ptr.FloatByReference;

import io.djltp.internal.libtorch.LibTorchFunctions;

import org.bytedeco.pytorch.Device;
import org.bytedeco.pytorch.DeviceGuardImplInterface;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.DeviceType;

/**
 * Products of matrices in float16 whose sums are float32, and are added to in float32.
 *
 * <p>ATen's own product, {@code mm}, rounds its result to float16, in which what is above 65,504 is
 * infinite. So here are the functions that libtorch itself computes with: cuBLAS's on GPUs, in the
 * stream that libtorch has there, and MKL's on processors. Both want matrices by columns: of those
 * by rows they compute \(C^T = B^T A^T\).
 */
public final class Float16Product {

    // of MKL's header
    private static final int BY_COLUMNS = 102;
    private static final int AS_IT_IS = 111;
    private static final int TRANSPOSED = 112;

    // of cuBLAS's headers
    private static final int CUDA_R_16F = 2;
    private static final int CUDA_R_32F = 0;
    private static final int CUBLAS_COMPUTE_32F = 68;
    private static final int CUBLAS_GEMM_DEFAULT = -1;

    private Float16Product() {}

    /** What computes \(C = keep\, C + factor\, A B\) of matrices by columns. */
    @FunctionalInterface
    interface Multiplication {

        /**
         * Computes a product.
         *
         * @param a the first factor, [m, k]
         * @param b the second factor, [k, n]
         * @param target where the product goes, by columns
         * @param ofTarget what its columns are apart
         * @param factor the factor of the product
         * @param keep the factor of the target
         */
        void run(Factor a, Factor b, Pointer target, int ofTarget, float factor, float keep);
    }

    /**
     * A matrix by columns.
     *
     * @param memory where it is
     * @param rows its rows
     * @param columns its columns
     * @param apart what its columns are apart; if transposed, its rows
     * @param transposed whether its rows lie one after another
     */
    record Factor(Pointer memory, int rows, int columns, int apart, boolean transposed) {

        /** Returns the transpose of a matrix whose rows or columns are contiguous. */
        static Factor transposeOf(Tensor matrix) {
            long rows = matrix.size(0);
            long columns = matrix.size(1);
            boolean byRows = matrix.stride(1) == 1 || columns == 1 && matrix.stride(0) != 1;
            long length = byRows ? columns : rows; // of what is contiguous
            long apart = length;
            if ((byRows ? rows : columns) > 1) {
                apart = Math.max(length, matrix.stride(byRows ? 0 : 1));
            }
            return new Factor(
                    new Pointer(matrix.data_ptr().address()),
                    Math.toIntExact(columns),
                    Math.toIntExact(rows),
                    Math.toIntExact(apart),
                    !byRows);
        }
    }

    /** MKL's, which converts the factors as it packs them. */
    private static final class OnProcessor {

        static final Multiplication MULTIPLY = mkl(LibTorchFunctions.get("cblas_gemm_f16f16f32"));
    }

    /** Looked up when the first product is computed there. */
    private static final class OnGpu {

        /** Returns the handle of the current GPU and thread, with the current stream. */
        static final Function HANDLE =
                LibTorchFunctions.ofCuda("_ZN2at4cuda25getCurrentCUDABlasHandleEv");

        static final Function MULTIPLY = LibTorchFunctions.ofCuda("cublasGemmEx");

        private static final DeviceGuardImplInterface CUDA =
                torch.getDeviceGuardImpl(DeviceType.CUDA);

        static void add(Tensor left, Tensor right, Tensor target, float keep, float factor) {
            try (Device own = target.device();
                    Device before = CUDA.exchangeDevice(own)) {
                try {
                    Multiplication multiply = cublas(MULTIPLY, HANDLE.invokePointer(new Object[0]));
                    Float16Product.run(multiply, left, right, target, keep, factor);
                } finally {
                    CUDA.setDevice(before);
                }
            }
        }
    }

    private static Multiplication mkl(Function function) {
        return (a, b, target, ofTarget, factor, keep) ->
                function.invoke(
                        new Object[] {
                            BY_COLUMNS,
                            a.transposed() ? TRANSPOSED : AS_IT_IS,
                            b.transposed() ? TRANSPOSED : AS_IT_IS,
                            a.rows(),
                            b.columns(),
                            a.columns(),
                            factor,
                            a.memory(),
                            a.apart(),
                            b.memory(),
                            b.apart(),
                            keep,
                            target,
                            ofTarget
                        });
    }

    /**
     * Returns the products of cuBLAS.
     *
     * @param function {@code cublasGemmEx}
     * @param handle what it takes first
     */
    static Multiplication cublas(Function function, Pointer handle) {
        return (a, b, target, ofTarget, factor, keep) -> {
            int status =
                    function.invokeInt(
                            new Object[] {
                                handle,
                                a.transposed() ? 1 : 0,
                                b.transposed() ? 1 : 0,
                                a.rows(),
                                b.columns(),
                                a.columns(),
                                new FloatByReference(factor),
                                a.memory(),
                                CUDA_R_16F,
                                a.apart(),
                                b.memory(),
                                CUDA_R_16F,
                                b.apart(),
                                new FloatByReference(keep),
                                target,
                                CUDA_R_32F,
                                ofTarget,
                                CUBLAS_COMPUTE_32F,
                                CUBLAS_GEMM_DEFAULT
                            });
            if (status != 0) {
                throw new EngineException(
                        ("cublasGemmEx has refused a product in float16 of %s x %s x %s with the"
                                        + " status %s of cublasStatus_t; use bfloat16 or float32")
                                .formatted(b.columns(), a.columns(), a.rows(), status));
            }
        };
    }

    /**
     * Returns whether there is a product. That for processors is for tests: its factors are
     * converted without instructions for their product.
     *
     * @param gpus for GPUs, by cuBLAS; or for processors, by MKL
     * @return whether the libtorch that is loaded has it or brings it along
     */
    public static boolean isThere(boolean gpus) {
        try {
            return (gpus ? OnGpu.MULTIPLY : OnProcessor.MULTIPLY) != null;
        } catch (LinkageError e) {
            return false; // another platform, or a libtorch for processors
        }
    }

    /**
     * Computes {@code target = keep target + factor left right}.
     *
     * @param left the left factor, float16 [m, k], its rows or its columns contiguous
     * @param right the right factor, float16 [k, n], its rows or its columns contiguous
     * @param target what is added to, float32 [m, n], its rows contiguous
     * @param keep the factor of the target; what it is multiplied with 0 need not be a number
     * @param factor the factor of the product
     * @throws UnsatisfiedLinkError if libtorch does not have the product on this platform
     * @throws EngineException if cuBLAS refuses it
     */
    public static void add(Tensor left, Tensor right, Tensor target, float keep, float factor) {
        if (target.is_cuda()) {
            OnGpu.add(left, right, target, keep, factor);
        } else {
            run(OnProcessor.MULTIPLY, left, right, target, keep, factor);
        }
    }

    /** Computes it by one function or the other. */
    static void run(
            Multiplication multiply,
            Tensor left,
            Tensor right,
            Tensor target,
            float keep,
            float factor) {
        if (target.numel() == 0) {
            return; // nothing to be written, and no memory either
        }
        long apart = target.size(0) > 1 ? target.stride(0) : target.size(1);
        multiply.run(
                Factor.transposeOf(right),
                Factor.transposeOf(left),
                new Pointer(target.data_ptr().address()),
                Math.toIntExact(apart),
                factor,
                keep);
    }
}
