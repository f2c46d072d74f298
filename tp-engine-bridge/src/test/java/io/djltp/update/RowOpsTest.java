package io.djltp.update;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;

import io.djltp.testing.TestArrays;

import org.testng.Assert;
import org.testng.annotations.Test;

/** The operations on rows equal a calculation by hand. */
public class RowOpsTest {

    @Test
    public void maxIsThatOfEachRow() {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray rows =
                    manager.create(
                            new float[][] {
                                {1, 5, 2}, {-3, -1, -2}, {0, Float.NEGATIVE_INFINITY, 0}
                            });
            NDArray largest = RowOps.max(rows);
            Assert.assertSame(largest.getManager(), manager);
            TestArrays.assertValues(largest, 5, -1, 0);
            TestArrays.assertValues(RowOps.max(rows.transpose()), 1, 5, 2);
            NDArray undefined = manager.create(new float[][] {{1, Float.NaN}});
            Assert.assertTrue(Float.isNaN(RowOps.max(undefined).getFloat(0)));
        }
    }

    @Test
    public void addAtChangesOneElementOfEachRow() {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray target = manager.arange(6f).reshape(3, 2);
            RowOps.addAt(
                    target,
                    manager.create(new long[] {1, 0, 1}),
                    manager.create(new float[] {10, 20, 30}));
            TestArrays.assertValues(target, 0, 11, 22, 3, 4, 35);
        }
    }

    @Test
    public void elementsBeforeAreLargerOrEqualAndLowerOrNotComparable() {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray rows =
                    manager.create(
                            new float[][] {
                                {3, 1, 2, 3}, {3, 3, 3, 3}, {1, 2, 3, 4}, {Float.NaN, 1, 5, 0}
                            });
            NDArray value = manager.create(new float[] {2, 3, 0, 4});
            NDArray column = manager.create(new long[] {2, 2, -7, 9});
            NDArray before = RowOps.countBefore(rows, value, column);
            Assert.assertSame(before.getManager(), manager);
            Assert.assertEquals(before.toLongArray(), new long[] {2, 2, 4, 2});
        }
    }

    @Test
    public void rowsAreCountedInBlocks() {
        try (NDManager manager = NDManager.newBaseManager()) {
            // more than a block in a row, and several rows
            int columns = (1 << 20) + 3;
            NDArray row = manager.arange(columns).toType(DataType.FLOAT32, false);
            NDArray rows = row.reshape(1, columns).repeat(0, 3);
            NDArray value = manager.create(new float[] {0, 7, columns - 1});
            NDArray column = manager.create(new long[] {0, 7, columns - 1});
            Assert.assertEquals(
                    RowOps.countBefore(rows, value, column).toLongArray(),
                    new long[] {columns - 1, columns - 8, 0});
        }
    }
}
