package io.djltp.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;

import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Tensor;
import org.testng.Assert;
import org.testng.annotations.Test;

/** The order of rows equals a calculation by hand. */
public class ChunkRankingTest {

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
            NDArray before = countBefore(rows, value, column);
            Assert.assertEquals(before.toLongArray(), new long[] {2, 2, 4, 2});
        }
    }

    @Test
    public void longRowsAreCounted() {
        try (NDManager manager = NDManager.newBaseManager()) {
            int columns = (1 << 20) + 3;
            NDArray row = manager.arange(columns).toType(DataType.FLOAT32, false);
            NDArray rows = row.reshape(1, columns).repeat(0, 3);
            NDArray value = manager.create(new float[] {0, 7, columns - 1});
            NDArray column = manager.create(new long[] {0, 7, columns - 1});
            Assert.assertEquals(
                    countBefore(rows, value, column).toLongArray(),
                    new long[] {columns - 1, columns - 8, 0});
        }
    }

    /** Returns how many elements of each row come before a value. */
    @SuppressWarnings("try") // a scope is used by being open
    static NDArray countBefore(NDArray rows, NDArray value, NDArray column) {
        try (TorchScope scope = TorchScope.open()) {
            Tensor before =
                    LogitChunks.countBefore(
                            TensorView.of(rows).tensor(),
                            TensorView.of(value).tensor(),
                            TensorView.of(column).tensor());
            return TensorView.toArray(before, rows.getManager());
        }
    }
}
