package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** The kernels of attention and of its norm, against the same in single operations of DJL. */
@SuppressWarnings("try") // a scope is used by being open
public class AttentionKernelTest {

    private static final double TOLERANCE = 1e-5;

    /** Batch, heads, queries, keys, features; long enough for the blocks of the kernel, too. */
    @DataProvider
    public Object[][] shapes() {
        return new Object[][] {
            {new long[] {2, 3, 5, 5, 4}, Bias.NONE},
            {new long[] {2, 3, 5, 5, 4}, Bias.CAUSAL},
            {new long[] {2, 3, 5, 7, 4}, Bias.KEYS},
            {new long[] {2, 3, 5, 7, 4}, Bias.PAIRS},
            {new long[] {1, 2, 70, 70, 8}, Bias.CAUSAL},
            {new long[] {1, 2, 65, 600, 8}, Bias.KEYS},
        };
    }

    /** What is added to the scores. */
    private enum Bias {
        NONE,
        CAUSAL,
        KEYS,
        PAIRS
    }

    @Test(dataProvider = "shapes", timeOut = 60_000)
    public void attentionIsThatOfSingleOperations(long[] size, Bias bias) {
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            Shape queries = new Shape(size[0], size[1], size[2], size[4]);
            Shape keys = new Shape(size[0], size[1], size[3], size[4]);
            NDList inputs =
                    new NDList(
                            manager.randomNormal(queries),
                            manager.randomNormal(keys),
                            manager.randomNormal(keys));
            NDArray added = bias(manager, bias, size);
            NDArray gradient = manager.randomNormal(queries);
            boolean causal = bias == Bias.CAUSAL;
            NDList expected = new NDList();
            NDList actual = new NDList();
            for (NDList results : new NDList[] {expected, actual}) {
                NDList own = new NDList();
                inputs.forEach(input -> own.add(input.duplicate()));
                own.forEach(input -> input.setRequiresGradient(true));
                NDArray y =
                        results == expected
                                ? products(own, added)
                                : AttentionKernel.of(
                                        own.get(0),
                                        own.get(1),
                                        own.get(2),
                                        causal ? null : added,
                                        causal);
                Autograd.backward(y, gradient);
                results.add(y);
                own.forEach(input -> results.add(Autograd.gradient(input)));
            }
            for (int i = 0; i < expected.size(); i++) {
                assertClose(actual.get(i), expected.get(i), "array " + i);
            }
        }
    }

    private static NDArray bias(NDManager manager, Bias bias, long[] size) {
        Shape shape =
                bias == Bias.KEYS
                        ? new Shape(size[0], 1, 1, size[3])
                        : new Shape(size[0], 1, size[2], size[3]);
        NDArray random = manager.randomUniform(0, 1, shape);
        NDArray hidden;
        switch (bias) {
            case NONE:
                return null;
            case CAUSAL:
                NDArray rows = manager.arange(size[2]).reshape(size[2], 1);
                hidden = rows.lt(manager.arange(size[3]).reshape(1, size[3]));
                break;
            default:
                // a query that sees no key has no gradient that could be compared
                NDArray others = manager.arange(size[3]).reshape(1, size[3]).gt(0);
                hidden = random.lt(0.4f).logicalAnd(others);
        }
        return hidden.toType(DataType.FLOAT32, false).mul(-1e9f);
    }

    private static NDArray products(NDList in, NDArray bias) {
        NDArray scale = in.head().getManager().create((float) (1 / Math.sqrt(sizeOfHead(in))));
        NDArray scores = in.get(0).mul(scale).matMul(in.get(1).transpose(0, 1, 3, 2));
        return (bias == null ? scores : scores.add(bias)).softmax(-1).matMul(in.get(2));
    }

    private static long sizeOfHead(NDList in) {
        return in.head().getShape().get(3);
    }

    /** {@code w x / sqrt(mean(x^2) + eps)}. */
    @Test(timeOut = 60_000)
    public void theNormIsThatOfSingleOperations() {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray x = manager.randomNormal(new Shape(3, 4, 6));
            NDArray w = manager.randomNormal(new Shape(6));
            NDArray root = x.square().mean(new int[] {2}, true).add(1e-5f).sqrt();
            assertClose(RootMeanSquare.normalize(x, w, 1e-5), x.div(root).mul(w), "norm");
        }
    }

    private static void assertClose(NDArray actual, NDArray expected, String what) {
        double largest = expected.abs().max().getFloat();
        double difference = actual.sub(expected).abs().max().getFloat();
        Assert.assertTrue(difference <= TOLERANCE * largest, what + ": " + difference);
    }
}
