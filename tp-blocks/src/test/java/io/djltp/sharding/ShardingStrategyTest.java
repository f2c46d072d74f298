package io.djltp.sharding;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.testing.ArrayAssert;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;

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

    /** Lengths of the user's choice, several ranges in any order, ranges on several ranks. */
    @Test
    public void chosenCutsComeTogetherAgain() {
        Cut uneven = Cut.ofLengths(5, 1, 3);
        Cut ranges =
                Cut.of(
                        9,
                        3,
                        rank ->
                                List.of(
                                        new ShardRange(6L + rank, 1),
                                        new ShardRange(2L * rank, 2)));
        Cut replicated = Cut.of(9, 3, rank -> List.of(new ShardRange(2L * rank, 5)));
        try (NDManager manager = NDManager.newBaseManager()) {
            for (Cut cut : List.of(uneven, ranges, replicated, Cut.replicated(9, 3))) {
                for (int axis = 0; axis < 3; axis++) {
                    long[] sizes = {2, 4, 3};
                    sizes[axis] = 9;
                    assertTogether(manager, ShardingStrategy.axiswise(axis, cut), sizes);
                    assertTogether(manager, ShardingStrategy.axiswise(axis - 3, cut), sizes);
                }
            }
        }
    }

    private static void assertTogether(
            NDManager manager, ShardingStrategy strategy, long... sizes) {
        Shape shape = new Shape(sizes);
        strategy.checkSplit("w", shape, 3);
        NDArray whole = manager.arange((float) shape.size()).reshape(shape);
        NDArray together = manager.full(shape, -1f);
        for (int rank = 0; rank < 3; rank++) {
            NDArray shard = manager.full(strategy.shardShape(shape, rank, 3), -2f);
            for (int row = 0; row < shape.get(0); row++) {
                NDArray rows = whole.get("{}:{}", row, row + 1);
                strategy.scatterRows(rows, row, shape, shard, rank, 3);
            }
            strategy.gather(shard, together, rank, 3);
        }
        ArrayAssert.assertExact(together, whole.toFloatArray(), shape, strategy.toString());
    }

    @Test
    public void strategiesAreValues() {
        Cut cut = Cut.ofLengths(5, 3);
        Assert.assertEquals(
                ShardingStrategy.rowwise(cut), ShardingStrategy.axiswise(0, Cut.ofLengths(5, 3)));
        Assert.assertEquals(
                ShardingStrategy.rowwise(cut).hashCode(),
                ShardingStrategy.axiswise(0, Cut.ofLengths(5, 3)).hashCode());
        Assert.assertNotEquals(ShardingStrategy.rowwise(cut), ShardingStrategy.columnwise(cut));
        Assert.assertNotEquals(ShardingStrategy.rowwise(cut), ShardingStrategy.rowwise());
        Assert.assertEquals(
                ShardingStrategy.withoutReplicas(ShardingStrategy.rowwise(cut)),
                ShardingStrategy.withoutReplicas(ShardingStrategy.rowwise(cut)));
        Assert.assertEquals(
                ShardingStrategy.rowwise(cut).toString(), "axiswise(0, [0,5) | [5,8) of 8)");
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
