package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.testing.TestArrays;

import org.testng.Assert;
import org.testng.annotations.Test;

/** Rows by their numbers, and what comes back to them. */
public class IndexedRowsTest {

    @Test
    public void aRowThatIsTakenTwiceGetsBothGradients() {
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            Assert.assertNotNull(mode);
            NDArray rows = TestArrays.leaf(manager.arange(6f).reshape(3, 2));
            NDArray taken = IndexedRows.take(rows, manager.create(new long[] {2, 0, 2}));
            TestArrays.assertValues(taken, 4, 5, 0, 1, 4, 5);
            Autograd.backward(taken, manager.arange(1f, 7f).reshape(3, 2));
            TestArrays.assertGradient(
                    rows, manager.create(new float[] {3, 4, 0, 0, 6, 8}, new Shape(3, 2)), "");
        }
    }

    @Test
    public void rowsAreAddedWithTheirFactors() {
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            Assert.assertNotNull(mode);
            NDArray rows = TestArrays.leaf(manager.arange(1f, 7f).reshape(3, 2));
            NDArray factors = TestArrays.leaf(manager.create(new float[] {10, 1, 2}));
            NDArray numbers = manager.create(new long[] {1, 3, 1});
            NDArray sums = IndexedRows.sum(rows, factors, numbers, 4);
            TestArrays.assertValues(sums, 0, 0, 20, 32, 0, 0, 3, 4);
            Autograd.backward(sums, manager.ones(new Shape(4, 2)));
            TestArrays.assertGradient(
                    rows, manager.create(new float[] {10, 10, 1, 1, 2, 2}, new Shape(3, 2)), "");
            TestArrays.assertGradient(factors, manager.create(new float[] {3, 7, 11}), "");
        }
    }

    /** A part without a row is a part all the same. */
    @Test
    public void parts() {
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            Assert.assertNotNull(mode);
            NDArray rows = TestArrays.leaf(manager.arange(6f).reshape(3, 2));
            NDList parts = IndexedRows.split(rows, 1, 0, 2);
            Assert.assertEquals(parts.get(1).getShape(), new Shape(0, 2));
            TestArrays.assertValues(parts.get(2), 2, 3, 4, 5);
            Autograd.backward(parts.get(2), manager.ones(new Shape(2, 2)));
            TestArrays.assertGradient(
                    rows, manager.create(new float[] {0, 0, 1, 1, 1, 1}, new Shape(3, 2)), "");
            NDList single = IndexedRows.unstack(rows, manager);
            Assert.assertEquals(single.size(), 3);
            TestArrays.assertValues(single.get(1), 2, 3);
        }
    }

    @Test
    public void types() {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray wide = manager.ones(new Shape(2), DataType.FLOAT64);
            NDArray narrow = manager.ones(new Shape(1), DataType.FLOAT16);
            NDArray same = IndexedRows.inTypeOf(wide, narrow, manager);
            Assert.assertEquals(same.getDataType(), DataType.FLOAT16);
        }
    }
}
