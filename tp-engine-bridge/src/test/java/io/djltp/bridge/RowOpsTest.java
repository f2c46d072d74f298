package io.djltp.bridge;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

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
}
