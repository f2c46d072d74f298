package io.djltp.internal.torch;

import ai.djl.engine.EngineException;

import com.sun.jna.Callback;
import com.sun.jna.CallbackReference;
import com.sun.jna.Function;
import com.sun.jna.Pointer;

import io.djltp.internal.libtorch.LibTorchFunctions;
import io.djltp.testing.NeededArithmetic;
import io.djltp.testing.Refusals;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** Products in float16 with sums in float32, against float64. */
@SuppressWarnings("try") // a scope is used by being open
public class Float16ProductTest {

    private static final Pointer HANDLE = new Pointer(17);

    @BeforeClass
    public void theProductIsThere() {
        NeededArithmetic.float16Products();
    }

    @DataProvider
    public Object[][] shapes() {
        return new Object[][] {
            {1, 1, 1}, {1, 2, 3}, {3, 1, 5}, {5, 4, 1}, {7, 6, 16}, {33, 10, 17}, {130, 24, 40}
        };
    }

    /** By rows and by columns, into rows that are further apart than they are long. */
    @Test(dataProvider = "shapes", timeOut = 60_000)
    public void sumsAreFloat32(long m, long k, long n) {
        assertWithinTheBound(Float16Product::add, m, k, n);
    }

    /** The call of cuBLAS, with a double of it that has its arguments, in the same memory. */
    @Test(dataProvider = "shapes", timeOut = 60_000)
    public void cublasIsCalledAsItIsDocumented(long m, long k, long n) {
        Cublas function = new Cublas();
        Float16Product.Multiplication multiply =
                Float16Product.cublas(function.asFunction(), HANDLE);
        assertWithinTheBound(
                (left, right, target, keep, factor) ->
                        Float16Product.run(multiply, left, right, target, keep, factor),
                m,
                k,
                n);
        Assert.assertEquals(function.calls, 8);
    }

    @Test(timeOut = 60_000)
    public void whatCublasRefusesIsAnError() {
        Cublas function = new Cublas();
        function.status = 13;
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor one = random(1, 1);
            Float16Product.Multiplication multiply =
                    Float16Product.cublas(function.asFunction(), HANDLE);
            Refusals.expect(
                    EngineException.class,
                    () -> Float16Product.run(multiply, one, one, one.to(ScalarType.Float), 0, 1),
                    "status 13");
        }
    }

    /** A processor's libtorch has no part for GPUs. */
    @Test(timeOut = 60_000)
    public void withoutCudaThereIsNone() {
        Assert.assertThrows(
                UnsatisfiedLinkError.class, () -> LibTorchFunctions.ofCuda("cublasGemmEx"));
        Assert.assertFalse(Float16Product.isThere(true));
        Assert.assertFalse(Float16Product.isThere(true), "and the second time");
    }

    /** What would be infinite in float16 is a number. */
    @Test(timeOut = 60_000)
    public void largeSumsAreNumbers() {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            TensorOptions halves = new TensorOptions(ScalarType.Half);
            Tensor left = torch.full(new long[] {2, 8}, new Scalar(60000f), halves);
            Scalar none = new Scalar(Float.NaN);
            Tensor target =
                    torch.full(new long[] {2, 2}, none, new TensorOptions(ScalarType.Float));
            Float16Product.add(left, left.t(), target, 0, 1);
            Assert.assertEquals(target.min().item_double(), 8 * 3.6e9, 8 * 3.6e9 / 1e6);
        }
    }

    private static void assertWithinTheBound(Product product, long m, long k, long n) {
        Products.Product plain =
                (left, right, target, keep) ->
                        product.add(left, right, target, keep, keep == 0 ? 1 : -0.5f);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            torch.manual_seed(m + k + n);
            for (boolean byRows : new boolean[] {true, false}) {
                for (boolean too : new boolean[] {true, false}) {
                    Tensor left = byRows ? random(m, k + 2).narrow(1, 1, k) : random(k, m).t();
                    Tensor right = too ? random(k, n) : random(n, k + 1).narrow(1, 0, k).t();
                    Products.assertFloat32Sums(left, right, plain, -0.5, 2, 2);
                }
            }
        }
    }

    private interface Product {
        void add(Tensor left, Tensor right, Tensor target, float keep, float factor);
    }

    private static Tensor random(long rows, long columns) {
        return torch.randn(new long[] {rows, columns}, new TensorOptions(ScalarType.Float))
                .to(ScalarType.Half);
    }

    /** {@code cublasGemmEx} for the memory of the host, as its documentation describes it. */
    private static final class Cublas implements Callback {

        private int calls;
        private int status;

        private Function asFunction() {
            return Function.getFunction(CallbackReference.getFunctionPointer(this));
        }

        /** Has the signature of the function, which JNA reads. */
        public int callback(
                Pointer handle,
                int opA,
                int opB,
                int m,
                int n,
                int k,
                Pointer alpha,
                Pointer a,
                int typeOfA,
                int lda,
                Pointer b,
                int typeOfB,
                int ldb,
                Pointer beta,
                Pointer c,
                int typeOfC,
                int ldc,
                int compute,
                int algorithm) {
            boolean known =
                    handle.equals(HANDLE)
                            && typeOfA == 2 // CUDA_R_16F
                            && typeOfB == 2
                            && typeOfC == 0 // CUDA_R_32F
                            && compute == 68 // CUBLAS_COMPUTE_32F
                            && algorithm == -1; // CUBLAS_GEMM_DEFAULT
            boolean apart = lda >= (opA == 0 ? m : k) && ldb >= (opB == 0 ? k : n) && ldc >= m;
            if (!known || !apart) {
                return 7; // CUBLAS_STATUS_INVALID_VALUE
            }
            calls++;
            for (int row = 0; row < m; row++) {
                for (int column = 0; column < n; column++) {
                    float sum = 0;
                    for (int i = 0; i < k; i++) {
                        float left = half(a, opA == 0 ? row + i * lda : i + row * lda);
                        sum += left * half(b, opB == 0 ? i + column * ldb : column + i * ldb);
                    }
                    long place = 4L * (row + column * ldc);
                    float keep = beta.getFloat(0);
                    float kept = keep == 0 ? 0 : keep * c.getFloat(place);
                    c.setFloat(place, alpha.getFloat(0) * sum + kept);
                }
            }
            return status;
        }

        /** Normal numbers and zero only. */
        private static float half(Pointer memory, int index) {
            int bits = memory.getShort(2L * index);
            int magnitude = bits & 0x7fff;
            float value =
                    magnitude == 0 ? 0 : Float.intBitsToFloat((magnitude << 13) + (112 << 23));
            return bits < 0 ? -value : value;
        }
    }
}
