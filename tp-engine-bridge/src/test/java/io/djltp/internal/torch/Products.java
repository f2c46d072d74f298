package io.djltp.internal.torch;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.testng.Assert;

/** Asserts that products of 16-bit factors are summed in float32, against float64. */
final class Products {

    private Products() {}

    /** Computes {@code target = keep target + c left right}. */
    interface Product {
        void run(Tensor left, Tensor right, Tensor target, float keep);
    }

    /**
     * Asserts that a product is within the bound of float32 sums, alone and added to itself, and
     * leaves alone what lies between its rows.
     *
     * @param factor c of a product that is added; it is 1 of one that is not
     * @param more roundings beside those of the sum
     * @param again how much larger the bound of the second product is
     */
    static void assertFloat32Sums(
            Tensor left, Tensor right, Product product, double factor, int more, int again) {
        long n = right.size(1);
        Tensor all =
                torch.ones(new long[] {left.size(0), n + 3}, new TensorOptions(ScalarType.Float));
        Tensor target = all.narrow(1, 0, n); // rows further apart than they are long
        Tensor l = left.to(ScalarType.Double);
        Tensor r = right.to(ScalarType.Double);
        Tensor exact = l.mm(r);
        double sums = l.abs().mm(r.abs()).max().item_double();
        double bound = (left.size(1) + more) * Math.scalb(1, -24) * (more == 0 ? sums : 1 + sums);
        product.run(left, right, target, 0);
        assertNear(target, exact, bound);
        product.run(left, right, target, 1);
        assertNear(target, exact.mul(new Scalar(1 + factor)), again * bound);
        Assert.assertEquals(all.narrow(1, n, 3).min().item_float(), 1f);
        Assert.assertEquals(all.narrow(1, n, 3).max().item_float(), 1f);
    }

    private static void assertNear(Tensor actual, Tensor expected, double bound) {
        double off = actual.to(ScalarType.Double).sub(expected).abs().max().item_double();
        Assert.assertTrue(off <= bound, off + " is above " + bound);
    }
}
