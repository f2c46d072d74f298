package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.core.Linear;

import io.djltp.testing.TestArrays;
import io.djltp.torch.Precision;

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
import java.util.function.BiFunction;

/** Large products of layers that are oneDNN's are in the graph as libtorch's own would be. */
@SuppressWarnings("try") // a mode is used by being open
public class OneDnnLinearTest {

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
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            int last = shape.dimension() - 1;
            NDArray x = TestArrays.leaf(manager.randomNormal(shape));
            NDArray w = TestArrays.leaf(manager.randomNormal(new Shape(out, shape.get(last))));
            Assert.assertTrue(OneDnnLinear.isFaster(x, w));
            NDArray y = PRODUCT.of(x, w, (NDArray) null);
            NDArray above = manager.randomNormal(y.getShape());
            Autograd.backward(y, above);
            NDArray rows = x.stopGradient().reshape(-1, shape.get(last));
            NDArray sums = above.reshape(-1, out);
            NDArray weight = w.stopGradient();
            check(y.stopGradient(), rows, weight.transpose());
            check(Autograd.gradient(x), sums, weight);
            check(Autograd.gradient(w), sums.transpose(), rows);
        }
    }

    private static void check(NDArray actual, NDArray left, NDArray right) {
        NDArray l = left.toType(DataType.FLOAT64, true);
        NDArray r = right.toType(DataType.FLOAT64, true);
        NDArray exact = l.matMul(r);
        NDArray off = difference(actual.reshape(exact.getShape()), exact);
        double ku = l.getShape().get(1) * 0x1p-24;
        NDArray over = off.sub(l.abs().matMul(r.abs()).mul(ku / (1 - ku)));
        Assert.assertTrue(over.max().getDouble() <= 0, "over the bound by " + over.max());
        double own = difference(left.matMul(right), exact).square().mean().getDouble();
        double found = off.square().mean().getDouble();
        Assert.assertTrue(Math.sqrt(found) <= 3 * Math.sqrt(own), found + " " + own);
    }

    private static NDArray difference(NDArray actual, NDArray exact) {
        return actual.toType(DataType.FLOAT64, true).sub(exact).abs();
    }

    /** What is computed of an input, a weight and a bias, and whether each requires a gradient. */
    private record Leaves(NDArray x, NDArray w, NDArray b) {}

    /** Returns networks of a layer, and which of x, w and b are frozen. */
    @DataProvider
    public static Object[][] networks() {
        BiFunction<Layer, Leaves, NDArray> once = (layer, in) -> layer.of(in.x(), in.w(), in.b());
        BiFunction<Layer, Leaves, NDArray> twice =
                (layer, in) -> {
                    NDArray below = layer.of(in.x(), in.w(), in.b()).tanh();
                    return layer.of(below, in.w(), in.b()).add(in.x());
                };
        BiFunction<Layer, Leaves, NDArray> strided =
                (layer, in) -> layer.of(in.x().transpose(), in.w().transpose(), null).transpose();
        BiFunction<Layer, Leaves, NDArray> computed =
                (layer, in) -> layer.of(in.x().tanh(), in.w().mul(2), in.b()).sum();
        BiFunction<Layer, Leaves, NDArray> deep =
                (layer, in) -> {
                    NDArray x = in.x().reshape(2, 2, -1, 512);
                    return layer.of(x, in.w(), null).addi(in.b()).mean(new int[] {2});
                };
        BiFunction<Layer, Leaves, NDArray> part =
                (layer, in) -> layer.of(in.x().get("128:,:"), in.w().get("256:"), null);
        return new Object[][] {
            {"once", once, ""},
            {"once", once, "x"},
            {"once", once, "w"},
            {"once", once, "b"},
            {"once", once, "wb"},
            {"once", once, "xwb"},
            {"twice", twice, ""},
            {"twice", twice, "w"},
            {"strided", strided, ""},
            {"computed", computed, ""},
            {"deep", deep, ""},
            {"part", part, ""},
        };
    }

    /** Computes a product. */
    private interface Layer {

        NDArray of(NDArray x, NDArray w, NDArray b);
    }

    /** Outputs and gradients, of two passes without a step between, are those of DJL's layer. */
    @Test(dataProvider = "networks", timeOut = 60_000)
    public void networksEqualThoseOfPlainLayers(
            String name, BiFunction<Layer, Leaves, NDArray> network, String frozen) {
        List<List<NDArray>> found = new ArrayList<>();
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            NDArray[] values = new NDArray[3];
            Shape[] shapes = {new Shape(512, 512), new Shape(512, 512), new Shape(512)};
            for (int i = 0; i < 3; i++) {
                values[i] =
                        manager.randomNormal(0, i == 1 ? 0.05f : 1, shapes[i], DataType.FLOAT32);
            }
            List<Layer> layers =
                    List.of(PRODUCT::of, (x, w, b) -> Linear.linear(x, w, b).singletonOrThrow());
            for (Layer layer : layers) {
                NDArray[] leaves =
                        Arrays.stream(values).map(NDArray::duplicate).toArray(NDArray[]::new);
                for (int i = 0; i < 3; i++) {
                    leaves[i].setRequiresGradient(frozen.indexOf("xwb".charAt(i)) < 0);
                }
                List<NDArray> results = new ArrayList<>();
                for (int pass = 0; pass < 2; pass++) {
                    NDArray y = network.apply(layer, new Leaves(leaves[0], leaves[1], leaves[2]));
                    results.add(y.stopGradient());
                    if (frozen.length() < 3) {
                        Autograd.backward(y, values[0].get(0).sum().broadcast(y.getShape()));
                    }
                }
                for (NDArray leaf : leaves) {
                    NDArray gradient = Autograd.gradient(leaf);
                    results.add(gradient == null ? manager.zeros(new Shape(1)) : gradient);
                }
                found.add(results);
            }
            for (int i = 0; i < found.get(0).size(); i++) {
                NDArray expected = found.get(1).get(i);
                Assert.assertEquals(found.get(0).get(i).getShape(), expected.getShape());
                double off =
                        difference(found.get(0).get(i), expected.toType(DataType.FLOAT64, true))
                                .max()
                                .getDouble();
                double largest = expected.abs().max().getFloat();
                Assert.assertTrue(
                        off <= 1e-5 * largest, name + " " + i + ": " + off + " of " + largest);
            }
        }
    }

    /** What was changed since is noticed, as libtorch does. */
    @Test(timeOut = 60_000)
    public void anInputThatWasChangedIsRefused() {
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            NDArray w = TestArrays.leaf(manager.randomNormal(new Shape(512, 512)));
            NDArray x = TestArrays.leaf(manager.randomNormal(new Shape(128, 512))).mul(2);
            NDArray y = PRODUCT.of(x, w, (NDArray) null);
            x.addi(1);
            RuntimeException error =
                    Assert.expectThrows(
                            RuntimeException.class, () -> Autograd.backward(y, y.onesLike()));
            Assert.assertTrue(error.getMessage().contains("modified by an inplace"), "" + error);
        }
    }

    /**
     * The manager of the input may be closed before the backward pass, and much is alive at once.
     */
    @Test(timeOut = 60_000)
    public void aGraphMayOutliveTheInput() {
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            NDArray w = TestArrays.leaf(manager.ones(new Shape(512, 512)).div(512));
            NDArray y = manager.ones(new Shape(128, 512));
            for (int i = 0; i < 100; i++) {
                try (NDManager below = manager.newSubManager()) {
                    y.attach(below);
                    y = PRODUCT.of(y, w, (NDArray) null);
                    y.attach(manager);
                }
            }
            Autograd.backward(y, y.onesLike());
            NDArray gradient = Autograd.gradient(w);
            Assert.assertEquals(gradient.min().getFloat(), 12800f, 0.2f);
            Assert.assertEquals(gradient.max().getFloat(), 12800f, 0.2f);
        }
    }

    /** A thousand steps leave no more behind than the first ones: not one of their arrays. */
    @Test(groups = "sweep", timeOut = 120_000)
    public void stepsLeaveNothingBehind() throws IOException {
        Path status = Path.of("/proc/self/statm"); // in pages
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            NDArray w = TestArrays.leaf(manager.randomNormal(new Shape(1024, 1024)));
            NDArray x = manager.randomNormal(new Shape(33, 1024));
            long before = 0;
            for (int step = 0; step < 1000; step++) {
                try (NDManager each = manager.newSubManager()) {
                    NDArray below = x.mul(each.create(1f));
                    below.attach(each);
                    NDArray y = PRODUCT.of(below, w, (NDArray) null);
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
    }

    /** Bits do not change from call to call. */
    @Test(timeOut = 60_000)
    public void theSameProductHasTheSameBits() {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray x = manager.randomNormal(new Shape(321, 512));
            NDArray w = manager.randomNormal(new Shape(512, 512));
            NDArray first = PRODUCT.of(x, w, (NDArray) null);
            for (int i = 0; i < 20; i++) {
                Assert.assertTrue(PRODUCT.of(x, w, (NDArray) null).contentEquals(first), "" + i);
            }
        }
    }
}
