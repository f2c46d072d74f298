package io.djltp.sharding;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.RecordedTest;
import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.List;

/** Which part of a parameter each rank gets, of any number of ranks. */
public class ShardingStrategyTest extends RecordedTest {

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
        for (int size = 1; size <= 4; size++) {
            Assert.assertEquals(assertTogether(manager, strategy, shape, size), shape.size());
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
        for (Cut cut : List.of(uneven, ranges, replicated, Cut.replicated(9, 3))) {
            for (int axis = 0; axis < 3; axis++) {
                long[] sizes = {2, 4, 3};
                sizes[axis] = 9;
                assertTogether(manager, ShardingStrategy.axiswise(axis, cut), new Shape(sizes), 3);
                assertTogether(
                        manager, ShardingStrategy.axiswise(axis - 3, cut), new Shape(sizes), 3);
            }
        }
    }

    /** Cuts the whole, some rows at a time too, and returns how many elements all ranks have. */
    private static long assertTogether(
            NDManager manager, ShardingStrategy strategy, Shape shape, int size) {
        strategy.checkSplit("w", shape, size);
        NDArray whole = manager.arange((float) shape.size()).reshape(shape);
        NDArray together = manager.full(shape, -1f);
        long elements = 0;
        for (int rank = 0; rank < size; rank++) {
            NDArray shard = manager.full(strategy.shardShape(shape, rank, size), -2f);
            strategy.scatterRows(whole, 0, shape, shard, rank, size);
            int several = (int) shape.get(0) / 100; // hundreds of parts show what thousands do
            for (int each = several + 1; each <= several + 2; each++) {
                NDArray inRows = manager.full(shard.getShape(), -3f);
                for (int row = 0; row < shape.get(0); row += each) {
                    NDArray rows = whole.get("{}:{}", row, Math.min(row + each, shape.get(0)));
                    strategy.scatterRows(rows, row, shape, inRows, rank, size);
                }
                ArrayAssert.assertExact(
                        inRows, shard.toFloatArray(), shard.getShape(), each + " rows at a time");
            }
            strategy.gather(shard, together, rank, size);
            elements += shard.size();
        }
        ArrayAssert.assertExact(together, whole.toFloatArray(), shape, strategy.toString());
        return elements;
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
        assertRefused(
                ShardingStrategy.columnwise(),
                new Shape(9, 3),
                4,
                "weight (9, 3)",
                "4 ranks",
                "rank 3 empty",
                "at most 3");
        Refusals.throwsArgument(
                () -> ShardingStrategy.columnwise().axis(new Shape(9)), "(9) has no axis 1");
    }

    private static final List<ShardingStrategy> ALL =
            List.of(
                    ShardingStrategy.rowwise(),
                    ShardingStrategy.columnwise(),
                    ShardingStrategy.gateUp(),
                    ShardingStrategy.stackedQkv(8, 2, 4),
                    ShardingStrategy.headAwareColumnwise(8, 4),
                    ShardingStrategy.headAwareRowwise(8, 4),
                    ShardingStrategy.tensorParallel(),
                    ShardingStrategy.expertParallel(),
                    ShardingStrategy.replicate());

    @Test
    public void strategiesThatDoTheSameAreEqual() {
        ShardingStrategy parts =
                ShardingStrategy.segmented(
                        0,
                        AxisPart.heads(8, 4),
                        AxisPart.keyValueHeads(8, 2, 4),
                        AxisPart.keyValueHeads(8, 2, 4));
        Assert.assertEquals(parts, ShardingStrategy.stackedQkv(8, 2, 4));
        Assert.assertEquals(parts.hashCode(), ShardingStrategy.stackedQkv(8, 2, 4).hashCode());
        Assert.assertEquals(
                ShardingStrategy.stackedQkv(8, 8, 4), ShardingStrategy.stackedQkv(8, 4));
        for (ShardingStrategy each : ALL) {
            Assert.assertEquals(each.isTensorParallel(), each == ALL.get(6));
            Assert.assertEquals(each.isExpertParallel(), each == ALL.get(7));
            Assert.assertEquals(each.isReplicated(), each == ALL.get(8));
        }
    }

    @Test
    public void strategiesAreValues() {
        for (ShardingStrategy one : ALL) {
            for (ShardingStrategy other : ALL) {
                Assert.assertEquals(one.equals(other), one == other, one + ", " + other);
            }
        }
        Assert.assertEquals(ShardingStrategy.gateUp(), ShardingStrategy.gateUp(0));
        Assert.assertNotEquals(ShardingStrategy.gateUp(), ShardingStrategy.gateUp(1));
        Assert.assertNotEquals(
                ShardingStrategy.stackedQkv(8, 2, 4), ShardingStrategy.stackedQkv(8, 4, 4));
        Assert.assertNotEquals(AxisPart.even(8), AxisPart.heads(2, 4));
        Cut cut = Cut.ofLengths(5, 3);
        ShardingStrategy rows = ShardingStrategy.rowwise(cut);
        ShardingStrategy same = ShardingStrategy.axiswise(0, Cut.ofLengths(5, 3));
        Assert.assertEquals(rows, same);
        Assert.assertEquals(rows.hashCode(), same.hashCode());
        Assert.assertNotEquals(rows, ShardingStrategy.columnwise(cut));
        Assert.assertNotEquals(rows, ShardingStrategy.rowwise());
        Assert.assertEquals(
                ShardingStrategy.withoutReplicas(rows), ShardingStrategy.withoutReplicas(same));
    }

    @Test
    public void theNames() {
        Assert.assertEquals(ShardingStrategy.gateUp().toString(), "gateUp(0)");
        Assert.assertEquals(
                ShardingStrategy.stackedQkv(8, 2, 4).toString(),
                "segmented(0, heads(8, 4), keyValueHeads(8, 2, 4), keyValueHeads(8, 2, 4))");
        Assert.assertEquals(
                ShardingStrategy.segmented(1, AxisPart.even(3), AxisPart.heads(2, 4)).toString(),
                "segmented(1, even(3), heads(2, 4))");
        Assert.assertEquals(ShardingStrategy.expertParallel().toString(), "expertParallel");
        Assert.assertEquals(
                ShardingStrategy.rowwise(Cut.ofLengths(5, 3)).toString(),
                "axiswise(0, [0,5) | [5,8) of 8)");
    }

    @Test
    public void whatABlockResolvesHasNoCut() {
        for (ShardingStrategy strategy : ALL.subList(6, 8)) {
            assertRefused(strategy, new Shape(4, 3), 2, "" + strategy, "(4, 3)", "rowwise()");
            Refusals.throwsArgument(() -> strategy.cut(new Shape(4, 3), 2));
        }
    }

    @Test
    public void numbersThatAreNone() {
        for (Runnable wrong :
                new Runnable[] {
                    () -> ShardingStrategy.stackedQkv(0, 4),
                    () -> ShardingStrategy.stackedQkv(4, 0, 4),
                    () -> ShardingStrategy.headAwareColumnwise(4, 0),
                    () -> AxisPart.even(0),
                    () -> ShardingStrategy.segmented(0),
                    () -> AxisPart.heads(Cut.ofLengths(4, 0), 2),
                }) {
            Refusals.throwsArgument(wrong::run);
        }
    }

    /** The numbers of the rows or columns of a rank, found in an array that holds them. */
    private static long[] content(ShardingStrategy strategy, Shape shape, int rank, int size) {
        try (NDManager manager = NDManager.newBaseManager()) {
            assertTogether(manager, strategy, shape, size);
            int axis = strategy.axis(shape);
            long[] counted = {1, 1};
            counted[axis] = shape.get(axis);
            NDArray numbers = manager.arange((float) shape.get(axis)).reshape(new Shape(counted));
            NDArray whole = numbers.broadcast(shape).duplicate();
            NDArray shard = manager.full(strategy.shardShape(shape, rank, size), -1f);
            strategy.scatterRows(whole, 0, shape, shard, rank, size);
            float[] line = shard.get(axis == 0 ? ":, 0" : "0, :").toFloatArray();
            long[] rows = new long[line.length];
            Arrays.setAll(rows, i -> (long) line[i]);
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
        Refusals.throwsArgument(() -> strategy.checkSplit("weight", shape, size), parts);
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
        Refusals.throwsArgument(
                () -> ShardingStrategy.stackedQkv(7, 2, 4), "7 query heads", "2 key/value heads");
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
