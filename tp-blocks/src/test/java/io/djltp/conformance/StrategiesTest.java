package io.djltp.conformance;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.sharding.AxisPart;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;

/** Conformance cases 2 to 5: which rows and columns each rank gets. */
public class StrategiesTest {

    /** The numbers of the rows or columns of a rank, found in an array that holds them. */
    private static long[] content(ShardingStrategy strategy, Shape shape, int rank, int size) {
        try (NDManager manager = NDManager.newBaseManager()) {
            int axis = strategy.axis(shape);
            long[] counted = {1, 1};
            counted[axis] = shape.get(axis);
            NDArray whole =
                    manager.arange((float) shape.get(axis))
                            .reshape(new Shape(counted))
                            .broadcast(shape)
                            .duplicate();
            NDArray shard = manager.full(strategy.shardShape(shape, rank, size), -1f);
            strategy.scatterRows(whole, 0, shape, shard, rank, size);
            NDArray together = manager.full(shape, -1f);
            for (int i = 0; i < size; i++) {
                NDArray part = manager.full(strategy.shardShape(shape, i, size), -1f);
                strategy.scatterRows(whole, 0, shape, part, i, size);
                strategy.gather(part, together, i, size);
            }
            ArrayAssert.assertExact(together, whole.toFloatArray(), shape, strategy.toString());
            NDArray line = axis == 0 ? shard.get(":, 0") : shard.get("0, :");
            float[] numbers = line.toFloatArray();
            long[] rows = new long[numbers.length];
            Arrays.setAll(rows, i -> (long) numbers[i]);
            return rows;
        }
    }

    private static long[] rows(long... firstsAndEnds) {
        long[] all = new long[0];
        for (int i = 0; i < firstsAndEnds.length; i += 2) {
            int at = all.length;
            long first = firstsAndEnds[i];
            all = Arrays.copyOf(all, at + (int) (firstsAndEnds[i + 1] - first));
            for (int j = at; j < all.length; j++) {
                all[j] = first + j - at;
            }
        }
        return all;
    }

    private static void assertRefused(
            ShardingStrategy strategy, Shape shape, int size, String... parts) {
        Refusals.expect(
                IllegalArgumentException.class,
                () -> strategy.checkSplit("weight", shape, size),
                parts);
    }

    /** Case 2: the columns of the output projection are the rows of the query projection. */
    @Test
    public void headsAreNotDividedAndQueryRowsAreOutputColumns() {
        ShardingStrategy output = ShardingStrategy.headAwareColumnwise(30, 64);
        ShardingStrategy query = ShardingStrategy.headAwareRowwise(30, 64);
        Cut columns = output.cut(new Shape(5, 1920), 4);
        Assert.assertEquals(columns.getShardLengths(), new long[] {512, 512, 448, 448});
        Assert.assertEquals(query.cut(new Shape(1920, 5), 4), columns);
        Assert.assertEquals(content(output, new Shape(2, 1920), 2, 4), rows(1024, 1472));
        Assert.assertEquals(content(query, new Shape(1920, 2), 3, 4), rows(1472, 1920));
    }

    /** Case 3. */
    @Test
    public void stackedQueriesKeysAndValuesKeepTheirOrder() {
        ShardingStrategy stacked = ShardingStrategy.stackedQkv(7, 2);
        Shape shape = new Shape(42, 3);
        Assert.assertEquals(content(stacked, shape, 0, 3), rows(0, 6, 14, 20, 28, 34));
        Assert.assertEquals(content(stacked, shape, 1, 3), rows(6, 10, 20, 24, 34, 38));
        Assert.assertEquals(content(stacked, shape, 2, 3), rows(10, 14, 24, 28, 38, 42));
        assertRefused(stacked, new Shape(43, 3), 3, "14 + 14 + 14 = 42 of 43", "axis 0");
        assertRefused(ShardingStrategy.stackedQkv(7, 3), shape, 3, "21 + 21 + 21 = 63 of 42");
        assertRefused(stacked, shape, 8, "8 ranks", "7 heads", "at most 7");
        assertRefused(ShardingStrategy.stackedQkv(8, 2, 2), shape, 2, "16 + 4 + 4 = 24 of 42");
    }

    /** Case 4: a rank has its part of both, not the first rank the gate and the last the rest. */
    @Test
    public void gateAndUpAreCutEachForItself() {
        ShardingStrategy strategy = ShardingStrategy.gateUp();
        Assert.assertEquals(
                content(strategy, new Shape(10, 3), 0, 2), new long[] {0, 1, 2, 5, 6, 7});
        Assert.assertEquals(content(strategy, new Shape(10, 3), 1, 2), new long[] {3, 4, 8, 9});
        ShardingStrategy columns = ShardingStrategy.gateUp(-1);
        Assert.assertEquals(content(columns, new Shape(3, 10), 1, 2), new long[] {3, 4, 8, 9});
        assertRefused(strategy, new Shape(9, 3), 2, "odd", "9", "axis 0");
        assertRefused(strategy, new Shape(10, 3), 6, "5 features each", "6 ranks", "at most 5");
    }

    /** Case 4: the fused projection of a parallel attention and MLP. */
    @Test
    public void segmentsAreCutEachForItself() {
        AxisPart heads = AxisPart.heads(24, 256);
        AxisPart half = AxisPart.even(18432);
        ShardingStrategy strategy = ShardingStrategy.segmented(0, heads, heads, heads, half, half);
        Shape shape = new Shape(3 * 24 * 256 + 2 * 18432, 1);
        for (int rank = 0; rank < 4; rank++) {
            Assert.assertEquals(strategy.cut(shape, 4).getShardLength(rank), 13824);
        }
        long q = 24 * 256;
        long g = 3 * q;
        Assert.assertEquals(
                content(strategy, shape, 1, 4),
                rows(
                        1536,
                        3072,
                        q + 1536,
                        q + 3072,
                        2 * q + 1536,
                        2 * q + 3072,
                        g + 4608,
                        g + 9216,
                        g + 18432 + 4608,
                        g + 18432 + 9216));
        assertRefused(
                ShardingStrategy.segmented(0, AxisPart.even(300), AxisPart.even(200)),
                new Shape(1000, 1),
                4,
                "300 + 200 = 500 of 1000",
                "axis 0");
    }

    @DataProvider
    public Object[][] groups() {
        return new Object[][] {{4, 8, 2}, {8, 4, 1}, {16, 2, 1}};
    }

    /** Case 5: 32 query heads share 8 key/value heads. */
    @Test(dataProvider = "groups")
    public void aRankHasTheKeysThatItsQueriesUse(int ranks, int queries, int keys) {
        Shape shape = new Shape((32 + 2 * 8) * 3, 1);
        ShardingStrategy stacked = ShardingStrategy.stackedQkv(32, 8, 3);
        ShardingStrategy values = ShardingStrategy.keyValueRowwise(32, 8, 3);
        for (int rank = 0; rank < ranks; rank++) {
            long q = rank * queries * 3L;
            long k = rank * 8 / ranks * 3L; // with 16 ranks floor(r / 2)
            Assert.assertEquals(
                    content(stacked, shape, rank, ranks),
                    rows(
                            q,
                            q + queries * 3L,
                            96 + k,
                            96 + k + keys * 3L,
                            120 + k,
                            120 + k + keys * 3L));
            Assert.assertEquals(
                    content(values, new Shape(24, 1), rank, ranks), rows(k, k + keys * 3L));
        }
        Cut cut = values.cut(new Shape(24, 1), ranks);
        Assert.assertEquals(cut.isPartition(), ranks <= 8);
        Assert.assertEquals(cut.getReplicas(ranks - 1).length, ranks == 16 ? 2 : 1);
    }

    /** Seven query heads on three ranks, of which the second needs two key heads. */
    @Test
    public void queryHeadsOfOneKeyMayBeOnTwoRanks() {
        ShardingStrategy keys = ShardingStrategy.keyValueRowwise(6, 2, 2);
        Assert.assertEquals(content(keys, new Shape(4, 1), 0, 4), rows(0, 2));
        Assert.assertEquals(content(keys, new Shape(4, 1), 1, 4), rows(0, 4));
        Assert.assertEquals(content(keys, new Shape(4, 1), 2, 4), rows(2, 4));
        Assert.assertEquals(content(keys, new Shape(4, 1), 3, 4), rows(2, 4));
        ShardingStrategy one = ShardingStrategy.keyValueRowwise(7, 1, 2); // multi-query
        Assert.assertEquals(one.cut(new Shape(2, 1), 3), Cut.replicated(2, 3));
        Refusals.expect(
                IllegalArgumentException.class,
                () -> ShardingStrategy.stackedQkv(7, 2, 4),
                "7 query heads",
                "2 key/value heads");
    }

    /** Heads that the user divides: the keys follow the queries. */
    @Test
    public void chosenHeads() {
        Cut chosen = Cut.ofLengths(1, 3);
        ShardingStrategy stacked =
                ShardingStrategy.segmented(
                        0,
                        AxisPart.heads(chosen, 2),
                        AxisPart.keyValueHeads(chosen, 2, 2),
                        AxisPart.chosen(Cut.ofLengths(3, 1)));
        Assert.assertEquals(content(stacked, new Shape(16, 1), 0, 2), rows(0, 2, 8, 10, 12, 15));
        Assert.assertEquals(content(stacked, new Shape(16, 1), 1, 2), rows(2, 12, 15, 16));
        assertRefused(stacked, new Shape(16, 1), 3, "2 ranks, not for 3");
    }
}
