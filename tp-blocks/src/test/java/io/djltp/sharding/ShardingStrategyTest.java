package io.djltp.sharding;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.testing.ArrayAssert;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** What is cut into shards, at once or row by row, comes together again as it was. */
public class ShardingStrategyTest {

    @DataProvider
    public Object[][] cuts() {
        return new Object[][] {
            {ShardingStrategy.rowwise(), new Shape(129, 5)},
            {ShardingStrategy.columnwise(), new Shape(5, 129)},
            {ShardingStrategy.rowwise(), new Shape(7)},
            {ShardingStrategy.axiswise(-1), new Shape(3, 4, 11)},
            {ShardingStrategy.axiswise(1), new Shape(3, 9, 4)},
            {ShardingStrategy.axiswise(-3), new Shape(10, 2, 3)},
        };
    }

    @Test(dataProvider = "cuts")
    public void shardsComeTogetherAgain(ShardingStrategy strategy, Shape shape) {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray whole = manager.arange(shape.size()).toType(DataType.FLOAT32, false);
            whole = whole.reshape(shape);
            for (int size = 1; size <= 4; size++) {
                NDArray together = manager.full(shape, -1f);
                long elements = 0;
                for (int rank = 0; rank < size; rank++) {
                    NDArray shard = manager.full(strategy.shardShape(shape, rank, size), -2f);
                    strategy.scatterRows(whole, 0, shape, shard, rank, size);
                    NDArray inRows = manager.full(shard.getShape(), -3f);
                    for (int row = 0; row < shape.get(0); row += 2) {
                        NDArray rows = whole.get("{}:{}", row, Math.min(row + 2, shape.get(0)));
                        strategy.scatterRows(rows, row, shape, inRows, rank, size);
                    }
                    ArrayAssert.assertExact(
                            inRows, shard.toFloatArray(), shard.getShape(), "two rows at a time");
                    strategy.gather(shard, together, rank, size);
                    elements += shard.size();
                }
                Assert.assertEquals(elements, shape.size());
                ArrayAssert.assertExact(together, whole.toFloatArray(), shape, "size " + size);
            }
        }
    }

    @Test
    public void aReplicaIsTheWhole() {
        ShardingStrategy strategy = ShardingStrategy.replicate();
        Assert.assertTrue(strategy.isReplicated());
        Assert.assertEquals(strategy.shardShape(new Shape(7, 3), 2, 4), new Shape(7, 3));
        strategy.checkSplit("weight", new Shape(1, 3), 4);
    }

    @Test
    public void unevenShards() {
        ShardingStrategy strategy = ShardingStrategy.columnwise();
        Assert.assertFalse(strategy.isReplicated());
        Assert.assertEquals(strategy.shardShape(new Shape(2, 10), 0, 4), new Shape(2, 3));
        Assert.assertEquals(strategy.shardShape(new Shape(2, 10), 3, 4), new Shape(2, 2));
        strategy.checkSplit("weight", new Shape(2, 4), 4);
    }

    @Test
    public void anEmptyShardOrAMissingAxisIsRefused() {
        IllegalArgumentException e =
                Assert.expectThrows(
                        IllegalArgumentException.class,
                        () -> ShardingStrategy.columnwise().checkSplit("w", new Shape(9, 3), 4));
        for (String part : new String[] {"w (9, 3)", "4 ranks", "rank 3 empty", "at most 3"}) {
            Assert.assertTrue(e.getMessage().contains(part), e.getMessage());
        }
        e =
                Assert.expectThrows(
                        IllegalArgumentException.class,
                        () -> ShardingStrategy.columnwise().axis(new Shape(9)));
        Assert.assertTrue(e.getMessage().contains("(9) has no axis 1"), e.getMessage());
    }
}
