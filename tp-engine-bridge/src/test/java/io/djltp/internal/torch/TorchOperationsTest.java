package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.testing.RecordedTest;
import io.djltp.testing.TestArrays;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** Operations of libtorch, against the same in single operations of DJL. */
public class TorchOperationsTest extends RecordedTest {

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
        Shape queries = new Shape(size[0], size[1], size[2], size[4]);
        Shape keys = new Shape(size[0], size[1], size[3], size[4]);
        NDArray[] inputs = {
            manager.randomNormal(queries), manager.randomNormal(keys), manager.randomNormal(keys)
        };
        NDArray added = bias(bias, size);
        NDArray gradient = manager.randomNormal(queries);
        boolean causal = bias == Bias.CAUSAL;
        NDList[] results = {new NDList(), new NDList()};
        for (int i = 0; i < 2; i++) {
            NDArray q = TestArrays.leaf(inputs[0].duplicate());
            NDArray k = TestArrays.leaf(inputs[1].duplicate());
            NDArray v = TestArrays.leaf(inputs[2].duplicate());
            NDArray y =
                    i == 0
                            ? products(q, k, v, added)
                            : TorchOperations.attention(q, k, v, causal ? null : added, causal);
            Autograd.backward(y, gradient);
            results[i].add(y);
            for (NDArray leaf : new NDArray[] {q, k, v}) {
                results[i].add(Autograd.gradient(leaf));
            }
        }
        for (int i = 0; i < results[0].size(); i++) {
            assertClose(results[1].get(i), results[0].get(i), "array " + i);
        }
    }

    private NDArray bias(Bias bias, long[] size) {
        NDArray keys = manager.arange(size[3]).reshape(1, size[3]);
        NDArray hidden =
                switch (bias) {
                    case NONE -> null;
                    case CAUSAL -> manager.arange(size[2]).reshape(size[2], 1).lt(keys);
                    default -> {
                        long queries = bias == Bias.KEYS ? 1 : size[2];
                        Shape shape = new Shape(size[0], 1, queries, size[3]);
                        NDArray random = manager.randomUniform(0, 1, shape);
                        // a query that sees no key has no gradient that could be compared
                        yield random.lt(0.4f).logicalAnd(keys.gt(0));
                    }
                };
        return hidden == null ? null : hidden.toType(DataType.FLOAT32, false).mul(-1e9f);
    }

    private NDArray products(NDArray q, NDArray k, NDArray v, NDArray bias) {
        NDArray scale = manager.create((float) (1 / Math.sqrt(q.getShape().get(3))));
        NDArray scores = q.mul(scale).matMul(k.transpose(0, 1, 3, 2));
        return (bias == null ? scores : scores.add(bias)).softmax(-1).matMul(v);
    }

    /** {@code w x / sqrt(mean(x^2) + eps)}. */
    @Test(timeOut = 60_000)
    public void theNormIsThatOfSingleOperations() {
        NDArray x = manager.randomNormal(new Shape(3, 4, 6));
        NDArray w = manager.randomNormal(new Shape(6));
        NDArray root = x.square().mean(new int[] {2}, true).add(1e-5f).sqrt();
        assertClose(TorchOperations.normalize(x, w, 1e-5), x.div(root).mul(w), "norm");
    }

    private static void assertClose(NDArray actual, NDArray expected, String what) {
        double largest = expected.abs().max().getFloat();
        double difference = actual.sub(expected).abs().max().getFloat();
        Assert.assertTrue(difference <= TOLERANCE * largest, what + ": " + difference);
    }

    @Test
    public void aRowThatIsTakenTwiceGetsBothGradients() {
        NDArray rows = TestArrays.leaf(manager.arange(6f).reshape(3, 2));
        NDArray taken = TorchOperations.takeRows(rows, manager.create(new long[] {2, 0, 2}));
        TestArrays.assertValues(taken, 4, 5, 0, 1, 4, 5);
        Autograd.backward(taken, manager.arange(1f, 7f).reshape(3, 2));
        TestArrays.assertGradient(rows, matrix(3, 4, 0, 0, 6, 8), "");
    }

    private NDArray matrix(float... values) {
        return manager.create(values, new Shape(values.length / 2, 2));
    }

    @Test
    public void rowsAreAddedWithTheirFactors() {
        NDArray rows = TestArrays.leaf(manager.arange(1f, 7f).reshape(3, 2));
        NDArray factors = TestArrays.leaf(manager.create(new float[] {10, 1, 2}));
        NDArray numbers = manager.create(new long[] {1, 3, 1});
        NDArray sums = TorchOperations.sumRows(rows, factors, numbers, 4);
        TestArrays.assertValues(sums, 0, 0, 20, 32, 0, 0, 3, 4);
        Autograd.backward(sums, manager.ones(new Shape(4, 2)));
        TestArrays.assertGradient(rows, matrix(10, 10, 1, 1, 2, 2), "");
        TestArrays.assertGradient(factors, manager.create(new float[] {3, 7, 11}), "");
    }

    /** A part without a row is a part all the same. */
    @Test
    public void parts() {
        NDArray rows = TestArrays.leaf(manager.arange(6f).reshape(3, 2));
        NDList parts = TorchOperations.split(rows, 1, 0, 2);
        Assert.assertEquals(parts.get(1).getShape(), new Shape(0, 2));
        TestArrays.assertValues(parts.get(2), 2, 3, 4, 5);
        Autograd.backward(parts.get(2), manager.ones(new Shape(2, 2)));
        TestArrays.assertGradient(rows, matrix(0, 0, 1, 1, 1, 1), "");
        NDList single = TorchOperations.unstack(rows, manager);
        Assert.assertEquals(single.size(), 3);
        TestArrays.assertValues(single.get(1), 2, 3);
    }

    @Test
    public void types() {
        NDArray wide = manager.ones(new Shape(2), DataType.FLOAT64);
        NDArray narrow = manager.ones(new Shape(1), DataType.FLOAT16);
        NDArray same = TorchOperations.inTypeOf(wide, narrow, manager);
        Assert.assertEquals(same.getDataType(), DataType.FLOAT16);
    }
}
