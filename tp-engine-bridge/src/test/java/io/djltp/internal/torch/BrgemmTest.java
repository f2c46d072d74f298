package io.djltp.internal.torch;

import io.djltp.testing.NeededArithmetic;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/**
 * Products in float32 have the bits of libtorch's in one thread, whoever computes them. Products in
 * bfloat16 have sums in float32.
 */
@SuppressWarnings("try") // a scope is used by being open
public class BrgemmTest {

    @DataProvider
    public Object[][] shapes() {
        return new Object[][] {
            {1, 64, 64}, // m, k, n
            {2, 64, 64},
            {64, 64, 1},
            {40, 3, 20},
            {16, 8, 16},
            {17, 9, 23},
            {904, 128, 64},
            {1024, 64, 128},
            {1500, 65, 65},
            {2049, 192, 33},
            {64, 193, 64},
            {300, 512, 40}
        };
    }

    @Test(dataProvider = "shapes", timeOut = 60_000)
    public void bitsAreThoseOfLibtorch(long m, long k, long n) {
        needFloat32();
        try (TorchScope scope = TorchScope.withoutGraph()) {
            torch.manual_seed(m + k + n);
            Tensor left = random(m, k);
            Tensor right = random(k, n);
            Tensor target = random(m, n + 3).narrow(1, 0, n); // rows further apart
            Tensor expected = random(m, n + 3).narrow(1, 0, n).copy_(target);
            Brgemm.multiply(left, right, target);
            torch.mm_out(expected, left, right);
            Assert.assertTrue(torch.equal(target, expected));
            if (!Brgemm.isFaster(left, right, target)) {
                return;
            }
            for (float factor : new float[] {-1e-5f, -0.3f, 1.7f}) {
                for (int keep = 0; keep < 2; keep++) {
                    Tensor scaled = right.mul(new Scalar(factor));
                    Brgemm.add(left, scaled, target, keep == 1, false);
                    expected.addmm_(left, right, new Scalar(keep), new Scalar(factor));
                    Assert.assertTrue(torch.equal(target, expected), keep + " " + factor);
                }
            }
        }
    }

    private static void needFloat32() {
        if (!Brgemm.isFaster()) {
            throw new SkipException("Here they are libtorch's own");
        }
        Autograd.setThreads(1); // as in the threads of a pass; the thread is the test's own
    }

    /** Rows of an array that no cache holds are read before they are multiplied or added to. */
    @Test(timeOut = 60_000)
    public void rowsFromMemoryGiveTheSame() {
        needFloat32();
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor all = random(140_000, 64);
            Assert.assertTrue(Brgemm.isFar(all));
            Assert.assertFalse(Brgemm.isFar(random(1024, 64)));
            Tensor rows = all.narrow(0, 138_500, 1500); // to the last element of the memory
            Tensor near = rows.clone();
            Tensor right = random(64, 48);
            Tensor product = random(1500, 48);
            Tensor expected = product.clone();
            Brgemm.multiply(rows, right, product);
            Brgemm.multiply(near, right, expected);
            Assert.assertTrue(torch.equal(product, expected));
            Tensor factor = random(48, 64);
            Brgemm.add(product, factor, rows, true, false);
            Brgemm.add(product, factor, near, true, true);
            Assert.assertTrue(torch.equal(rows, near));
        }
    }

    /** What is not a number before does not count with a factor of 0. */
    @Test(timeOut = 60_000)
    public void whatIsNotKeptDoesNotCount() {
        needFloat32();
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor target = random(32, 32).fill_(new Scalar(Float.NaN));
            Brgemm.add(random(32, 16), random(16, 32), target, false, false);
            Assert.assertTrue(Float.isFinite(target.sum().item_float()));
        }
    }

    @DataProvider
    public Object[][] packedShapes() {
        return new Object[][] {
            {1, 2, 1}, {1, 2, 3}, {3, 4, 5}, {7, 6, 16}, {33, 10, 17}, {1025, 8, 3}, {2047, 24, 40}
        };
    }

    /** Factors that bfloat16 holds: what is left is the rounding of sums in float32. */
    @Test(dataProvider = "packedShapes", timeOut = 60_000)
    public void sumsOfBFloat16AreFloat32(long m, long k, long n) {
        NeededArithmetic.bfloat16();
        try (TorchScope scope = TorchScope.withoutGraph()) {
            torch.manual_seed(m + k + n);
            Products.assertFloat32Sums(
                    random(m, k).to(ScalarType.BFloat16),
                    random(k, n).to(ScalarType.BFloat16),
                    (left, right, target, keep) ->
                            Brgemm.multiplyPacked(
                                    left, Brgemm.pack(right), target, keep == 1, false),
                    1,
                    0,
                    4);
            Brgemm.release();
        }
    }

    /** What is added to rows of an array that no cache holds has the same bits. */
    @Test(timeOut = 60_000)
    public void rowsFromMemoryGiveTheSameInBFloat16() {
        NeededArithmetic.bfloat16();
        try (TorchScope scope = TorchScope.withoutGraph()) {
            torch.manual_seed(3);
            Tensor rows = random(140_000, 64).narrow(0, 137_000, 3000);
            Assert.assertTrue(Brgemm.isFar(rows));
            Tensor near = rows.clone();
            Tensor left = random(3000, 24).to(ScalarType.BFloat16);
            Tensor packed = Brgemm.pack(random(24, 64));
            Brgemm.multiplyPacked(left, packed, rows, true, false);
            Brgemm.multiplyPacked(left, packed, near, true, true);
            Assert.assertTrue(torch.equal(rows, near));
            Brgemm.release();
        }
    }

    private static Tensor random(long rows, long columns) {
        return torch.randn(new long[] {rows, columns}, new TensorOptions(ScalarType.Float));
    }
}
