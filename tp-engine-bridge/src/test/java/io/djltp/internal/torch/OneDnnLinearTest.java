package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.core.Linear;

import io.djltp.testing.RecordedTest;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestArrays;
import io.djltp.torch.Precision;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** Large products of layers that are oneDNN's are in the graph as libtorch's own would be. */
@SuppressWarnings("try") // a scope is used by being open
public class OneDnnLinearTest extends RecordedTest {

    private static final LinearProduct PRODUCT = new LinearProduct(Precision.FLOAT32);

    @BeforeClass
    public void setUp() {
        if (!OneDnnLinear.isUsed()) {
            throw new SkipException("Here all products are libtorch's own");
        }
    }

    /** Shapes of the input, and the features of the output: parts of all kinds. */
    @DataProvider
    public Object[][] shapes() {
        return new Object[][] {
            {new Shape(64, 1024), 512},
            {new Shape(256, 300), 701},
            {new Shape(32, 4096), 300},
            {new Shape(331, 357), 363}, // 256, 64, and 11 that are libtorch's
            {new Shape(5, 61, 333), 401},
            {new Shape(3, 7, 20, 320), 280},
        };
    }

    /**
     * A sum of k products is within k u / (1 - k u) of the sum of their absolute values of the
     * exact one, whatever the order, u = 2^-24. And the root of the mean square of all distances is
     * at most three times that of libtorch's own: MKL begins a new sum every few hundred products,
     * oneDNN every thousand or more, and roundings grow as the root of their number.
     */
    @Test(dataProvider = "shapes", timeOut = 60_000)
    public void productsAreWithinTheBound(Shape shape, int out) {
        long in = shape.get(shape.dimension() - 1);
        NDArray x = TestArrays.leaf(manager.randomNormal(shape));
        NDArray w = TestArrays.leaf(manager.randomNormal(new Shape(out, in)));
        Assert.assertTrue(OneDnnLinear.isFaster(x, w));
        NDArray y = PRODUCT.of(x, w, null);
        NDArray above = manager.randomNormal(y.getShape());
        Autograd.backward(y, above);
        NDArray rows = x.stopGradient().reshape(-1, in);
        NDArray sums = above.reshape(-1, out);
        NDArray weight = w.stopGradient();
        check(y.stopGradient(), rows, weight.transpose());
        check(Autograd.gradient(x), sums, weight);
        check(Autograd.gradient(w), sums.transpose(), rows);
    }

    private static void check(NDArray actual, NDArray left, NDArray right) {
        NDArray l = TestArrays.wide(left);
        NDArray r = TestArrays.wide(right);
        NDArray exact = l.matMul(r);
        NDArray off = TestArrays.difference(actual.reshape(exact.getShape()), exact);
        double ku = l.getShape().get(1) * 0x1p-24;
        NDArray over = off.sub(l.abs().matMul(r.abs()).mul(ku / (1 - ku)));
        Assert.assertTrue(over.max().getDouble() <= 0, "over the bound by " + over.max());
        NDArray own = TestArrays.difference(left.matMul(right), exact);
        double found = off.square().mean().getDouble();
        double usual = own.square().mean().getDouble();
        Assert.assertTrue(Math.sqrt(found) <= 3 * Math.sqrt(usual), found + " " + usual);
    }

    /** Computes a product. */
    private interface Layer {
        NDArray of(NDArray x, NDArray w, NDArray b);
    }

    /** Computes something of a layer, an input, a weight and a bias. */
    private interface Network {
        NDArray of(Layer layer, NDArray x, NDArray w, NDArray b);
    }

    private static Object[] row(String name, Network network, String... frozen) {
        return new Object[] {name, network, frozen};
    }

    /** Returns networks of a layer, and which of x, w and b are frozen. */
    @DataProvider
    public static Object[][] networks() {
        Network twice =
                (layer, x, w, b) -> layer.of(layer.of(x, w, b).tanh(), w, b).add(x); // smooth
        Network strided =
                (layer, x, w, b) -> layer.of(x.transpose(), w.transpose(), null).transpose();
        Network deep =
                (layer, x, w, b) -> {
                    NDArray y = layer.of(x.reshape(2, 2, -1, 512), w, null);
                    return y.addi(b).mean(new int[] {2});
                };
        return new Object[][] {
            row("once", Layer::of, "", "x", "w", "b", "wb", "xwb"),
            row("twice", twice, "", "w"),
            row("strided", strided, ""),
            row("computed", (layer, x, w, b) -> layer.of(x.tanh(), w.mul(2), b).sum(), ""),
            row("deep", deep, ""),
            row("part", (l, x, w, b) -> l.of(x.get("128:,:"), w.get("256:"), null), ""),
        };
    }

    /** Outputs and gradients, of two passes without a step between, are those of DJL's layer. */
    @Test(dataProvider = "networks", timeOut = 60_000)
    public void networksEqualThoseOfPlainLayers(String name, Network network, String[] frozen) {
        Layer plain = (x, w, b) -> Linear.linear(x, w, b).singletonOrThrow();
        for (String each : frozen) {
            NDArray[] values = {
                manager.randomNormal(new Shape(512, 512)),
                manager.randomNormal(0, 0.05f, new Shape(512, 512), DataType.FLOAT32),
                manager.randomNormal(new Shape(512))
            };
            List<NDArray> expected = results(plain, network, each, values);
            List<NDArray> found = results(PRODUCT::of, network, each, values);
            for (int i = 0; i < found.size(); i++) {
                Assert.assertEquals(found.get(i).getShape(), expected.get(i).getShape());
                NDArray exact = TestArrays.wide(expected.get(i));
                double off = TestArrays.difference(found.get(i), exact).max().getDouble();
                double largest = exact.abs().max().getDouble();
                Assert.assertTrue(
                        off <= 1e-5 * largest, name + each + i + ": " + off + " of " + largest);
            }
        }
    }

    private List<NDArray> results(Layer layer, Network network, String frozen, NDArray... values) {
        NDArray[] leaves = Arrays.stream(values).map(NDArray::duplicate).toArray(NDArray[]::new);
        for (int i = 0; i < 3; i++) {
            leaves[i].setRequiresGradient(frozen.indexOf("xwb".charAt(i)) < 0);
        }
        List<NDArray> results = new ArrayList<>();
        for (int pass = 0; pass < 2; pass++) {
            NDArray y = network.of(layer, leaves[0], leaves[1], leaves[2]);
            results.add(y.stopGradient());
            if (frozen.length() < 3) {
                Autograd.backward(y, values[0].get(0).sum().broadcast(y.getShape()));
            }
        }
        for (NDArray leaf : leaves) {
            NDArray gradient = Autograd.gradient(leaf);
            results.add(gradient == null ? manager.zeros(new Shape(1)) : gradient);
        }
        return results;
    }

    /** The last of the summands, fewer than a kernel is compiled for, are libtorch's. */
    @Test(timeOut = 60_000)
    public void addsProductsOfATransposedFactor() {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor left = torch.randn(2077, 64);
            Tensor right = torch.randn(2077, 128);
            Tensor target = torch.randn(64, 128);
            Tensor l = left.t().to(ScalarType.Double);
            Tensor r = right.to(ScalarType.Double);
            Tensor expected = l.mm(r).add_(target);
            OneDnnLinear.addTransposed(left, right, target);
            double bound = 2078 * 0x1p-24 * l.abs().mm(r.abs()).max().item_double();
            double off = target.to(ScalarType.Double).sub(expected).abs().max().item_double();
            Assert.assertTrue(off <= bound, off + " is above " + bound);
        }
    }

    @Test(timeOut = 60_000)
    public void anInputThatWasChangedIsRefused() {
        NDArray w = TestArrays.leaf(manager.randomNormal(new Shape(512, 512)));
        NDArray x = TestArrays.leaf(manager.randomNormal(new Shape(128, 512))).mul(2);
        NDArray y = PRODUCT.of(x, w, null);
        x.addi(1);
        Refusals.expect(
                RuntimeException.class,
                () -> Autograd.backward(y, y.onesLike()),
                "modified by an inplace");
    }

    /**
     * The manager of the input may be closed before the backward pass, and much is alive at once.
     */
    @Test(timeOut = 60_000)
    public void aGraphMayOutliveTheInput() {
        NDArray w = TestArrays.leaf(manager.ones(new Shape(512, 512)).div(512));
        NDArray y = manager.ones(new Shape(128, 512));
        for (int i = 0; i < 100; i++) {
            try (NDManager below = manager.newSubManager()) {
                y.attach(below);
                y = PRODUCT.of(y, w, null);
                y.attach(manager);
            }
        }
        Autograd.backward(y, y.onesLike());
        NDArray gradient = Autograd.gradient(w);
        Assert.assertEquals(gradient.min().getFloat(), 12800f, 0.2f);
        Assert.assertEquals(gradient.max().getFloat(), 12800f, 0.2f);
    }

    /** A thousand steps leave no more behind than the first ones: not one of their arrays. */
    @Test(groups = "sweep", timeOut = 120_000)
    public void stepsLeaveNothingBehind() throws IOException {
        Path status = Path.of("/proc/self/statm"); // in pages
        NDArray w = TestArrays.leaf(manager.randomNormal(new Shape(1024, 1024)));
        NDArray x = manager.randomNormal(new Shape(33, 1024));
        long before = 0;
        for (int step = 0; step < 1000; step++) {
            try (NDManager each = manager.newSubManager()) {
                NDArray below = x.mul(each.create(1f));
                below.attach(each);
                NDArray y = PRODUCT.of(below, w, null);
                if (step % 10 > 0) { // of some there is no backward pass
                    Autograd.backward(y, y.onesLike());
                }
            }
            if (step == 99 || step == 999) {
                long pages = Long.parseLong(Files.readString(status).split(" ")[1]);
                before = step == 99 ? pages : before;
                Assert.assertTrue(pages - before < 16L << 8, before + " pages, " + pages);
            }
        }
    }

    /** Bits do not change from call to call. */
    @Test(timeOut = 60_000)
    public void theSameProductHasTheSameBits() {
        NDArray x = manager.randomNormal(new Shape(321, 512));
        NDArray w = manager.randomNormal(new Shape(512, 512));
        NDArray first = PRODUCT.of(x, w, null);
        for (int i = 0; i < 20; i++) {
            Assert.assertTrue(PRODUCT.of(x, w, null).contentEquals(first), "" + i);
        }
    }
}
