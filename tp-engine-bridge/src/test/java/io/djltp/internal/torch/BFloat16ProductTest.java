package io.djltp.internal.torch;

import io.djltp.testing.NeededArithmetic;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** Products in bfloat16 with sums in float32, against float64. */
@SuppressWarnings("try") // a scope is used by being open
public class BFloat16ProductTest {

    @BeforeClass
    public void bfloat16IsThere() {
        NeededArithmetic.bfloat16();
    }

    @DataProvider
    public Object[][] shapes() {
        return new Object[][] {
            {1, 2, 1}, {1, 2, 3}, {3, 4, 5}, {7, 6, 16}, {33, 10, 17}, {1025, 8, 3}, {2047, 24, 40}
        };
    }

    /** Factors that bfloat16 holds: what is left is the rounding of sums in float32. */
    @Test(dataProvider = "shapes", timeOut = 60_000)
    public void sumsAreFloat32(long m, long k, long n) {
        try (TorchScope scope = TorchScope.withoutGraph();
                PointerScope inner = new PointerScope()) {
            torch.manual_seed(m + k + n);
            Tensor left = random(m, k);
            Tensor right = random(k, n);
            Tensor all = torch.ones(new long[] {m, n + 3}, new TensorOptions(ScalarType.Float));
            Tensor target = all.narrow(1, 0, n); // rows further apart than they are long
            Tensor packed = BFloat16Product.pack(right);
            Tensor exact = left.to(ScalarType.Double).mm(right.to(ScalarType.Double));
            double bound =
                    k
                            * Math.scalb(1, -24)
                            * left.abs()
                                    .to(ScalarType.Double)
                                    .mm(right.abs().to(ScalarType.Double))
                                    .max()
                                    .item_double();
            BFloat16Product.multiply(left, packed, target, false);
            Assert.assertTrue(difference(target, exact) <= bound);
            BFloat16Product.multiply(left, packed, target, true);
            Assert.assertTrue(difference(target, exact.mul(new Scalar(2.0))) <= 4 * bound);
            Assert.assertEquals(all.narrow(1, n, 3).min().item_float(), 1f);
            Assert.assertEquals(all.narrow(1, n, 3).max().item_float(), 1f);
            BFloat16Product.release();
        }
    }

    /** What is added to rows of an array that no cache holds has the same bits. */
    @Test(timeOut = 60_000)
    public void rowsFromMemoryGiveTheSame() {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            torch.manual_seed(3);
            TensorOptions floats = new TensorOptions(ScalarType.Float);
            Tensor all = torch.randn(new long[] {140_000, 64}, floats);
            Assert.assertTrue(Brgemm.isFar(all));
            Tensor rows = all.narrow(0, 137_000, 3000); // to the last element of the memory
            Tensor near = rows.clone();
            Tensor left = random(3000, 24);
            Tensor packed = BFloat16Product.pack(random(24, 64));
            BFloat16Product.multiply(left, packed, rows, true);
            BFloat16Product.multiply(left, packed, near, true);
            Assert.assertTrue(torch.equal(rows, near));
            BFloat16Product.release();
        }
    }

    private static Tensor random(long rows, long columns) {
        return torch.randn(new long[] {rows, columns}, new TensorOptions(ScalarType.Float))
                .to(ScalarType.BFloat16);
    }

    private static double difference(Tensor actual, Tensor expected) {
        return actual.to(ScalarType.Double).sub(expected).abs().max().item_double();
    }
}
