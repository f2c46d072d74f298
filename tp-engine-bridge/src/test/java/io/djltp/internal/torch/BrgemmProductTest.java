package io.djltp.internal.torch;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** The bits are those of libtorch's products in one thread, whoever computes them. */
@SuppressWarnings("try") // a scope is used by being open
public class BrgemmProductTest {

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
        if (!BrgemmProduct.isFaster()) {
            throw new SkipException("Here they are libtorch's own");
        }
        int threads = torch.get_num_threads();
        Autograd.setThreads(1); // as in the threads of a pass
        try (TorchScope scope = TorchScope.withoutGraph()) {
            torch.manual_seed(m + k + n);
            Tensor left = random(m, k);
            Tensor right = random(k, n);
            Tensor target = random(m, n + 3).narrow(1, 0, n); // rows further apart
            Tensor expected = random(m, n + 3).narrow(1, 0, n).copy_(target);
            BrgemmProduct.multiply(left, right, target);
            torch.mm_out(expected, left, right);
            Assert.assertTrue(torch.equal(target, expected));
            for (float factor : new float[] {-1e-5f, -0.3f, 1.7f}) {
                for (float keep : new float[] {1, 0, 0.99f}) {
                    BrgemmProduct.add(left, right, target, keep, factor);
                    expected.addmm_(left, right, new Scalar(keep), new Scalar(factor));
                    Assert.assertTrue(torch.equal(target, expected), keep + " " + factor);
                }
            }
        } finally {
            Autograd.setThreads(threads);
        }
    }

    /** Rows of an array that no cache holds are read before they are multiplied. */
    @Test(timeOut = 60_000)
    public void rowsFromMemoryGiveTheSame() {
        if (!BrgemmProduct.isFaster()) {
            throw new SkipException("Here they are libtorch's own");
        }
        int threads = torch.get_num_threads();
        Autograd.setThreads(1);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor all = random(140_000, 64);
            Assert.assertTrue(Brgemm.isFar(all));
            Assert.assertFalse(Brgemm.isFar(random(1024, 64)));
            Tensor rows = all.narrow(0, 138_500, 1500); // to the last element of the memory
            Tensor near = rows.clone();
            Tensor right = random(64, 48);
            Tensor product = random(1500, 48);
            Tensor expected = product.clone();
            BrgemmProduct.multiply(rows, right, product);
            BrgemmProduct.multiply(near, right, expected);
            Assert.assertTrue(torch.equal(product, expected));
            Tensor factor = random(48, 64);
            BrgemmProduct.add(product, factor, rows, 1, -1e-5f);
            BrgemmProduct.add(product, factor, near, 1, -1e-5f);
            Assert.assertTrue(torch.equal(rows, near));
        } finally {
            Autograd.setThreads(threads);
        }
    }

    /** What is not a number before does not count with a factor of 0. */
    @Test(timeOut = 60_000)
    public void whatIsNotKeptDoesNotCount() {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor target = random(32, 32).fill_(new Scalar(Float.NaN));
            BrgemmProduct.add(random(32, 16), random(16, 32), target, 0, 1);
            Assert.assertTrue(Float.isFinite(target.sum().item_float()));
        }
    }

    private static Tensor random(long rows, long columns) {
        return torch.randn(new long[] {rows, columns}, new TensorOptions(ScalarType.Float));
    }
}
