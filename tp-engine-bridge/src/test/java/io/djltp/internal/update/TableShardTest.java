package io.djltp.internal.update;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import ai.djl.ndarray.types.SparseFormat;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.Autograd;
import io.djltp.testing.RecordedTest;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestArrays;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;

/** The lookups of all ranks together are DJL's, to the bit. */
@SuppressWarnings("try") // a scope is used by being open
public class TableShardTest extends RecordedTest {

    private static final int FEATURES = 4;

    /** Conformance case 16: ids that repeat, and vocabularies that no number of ranks divides. */
    @Test
    public void theRowsAndTheirGradients() {
        long[] some = {0, 3, 4, 7, 15, 15, 0};
        for (int vocabulary : new int[] {16, 13, 15}) {
            for (int count : new int[] {7, 500}) {
                long[] ids = new long[count];
                SplittableRandom random = new SplittableRandom(count);
                Arrays.setAll(
                        ids, i -> count == 7 ? some[i] % vocabulary : random.nextInt(vocabulary));
                for (int ranks = 1; ranks <= 4; ranks++) {
                    assertBits(Cut.balanced(vocabulary, ranks), ids);
                }
            }
        }
        Cut ranges =
                Cut.of(
                        16,
                        2,
                        rank ->
                                List.of(
                                        new ShardRange(4 * rank, 4),
                                        new ShardRange(8 + 4 * rank, 4)));
        assertBits(ranges, some);
    }

    private static void assertBits(Cut cut, long... ids) {
        int vocabulary = (int) cut.getLength();
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            NDArray index = manager.create(ids);
            NDArray above = TestArrays.random(manager, 2, new Shape(ids.length, FEATURES));
            NDArray whole = TestArrays.random(manager, 1, new Shape(vocabulary, FEATURES));
            above = above.div(7); // sums are rounded, in an order
            NDArray dense = TestArrays.leaf(whole.duplicate());
            NDArray expected =
                    index.getNDArrayInternal()
                            .embedding(index, dense, SparseFormat.DENSE)
                            .singletonOrThrow();
            Autograd.backward(expected, above);
            NDArray gradient = Autograd.gradient(dense);
            NDArray sum = manager.zeros(new Shape(ids.length, FEATURES));
            for (int rank = 0; rank < cut.getRanks(); rank++) {
                NDArray table = TestArrays.leaf(part(whole, cut, rank).duplicate());
                NDArray rows = new TableShard(cut, rank, -1).rows(table, index);
                sum = sum.add(Autograd.detach(rows, manager));
                Autograd.backward(rows, above);
                String text = "gradient of rank " + rank + " of " + cut;
                TestArrays.assertGradient(table, part(gradient, cut, rank), text);
            }
            TestArrays.assertSame(sum, expected, "rows");
        }
    }

    private static NDArray part(NDArray whole, Cut cut, int rank) {
        NDList ranges = new NDList();
        for (ShardRange range : cut.getRanges(rank)) {
            ranges.add(whole.get(new NDIndex().addSliceDim(range.start(), range.end())));
        }
        return ai.djl.ndarray.NDArrays.concat(ranges);
    }

    /** Of several ranks, one holds it; the row is there all the same. */
    @Test
    public void thePaddingHasNoGradient() {
        for (int ranks = 1; ranks <= 3; ranks++) {
            List<Float> found = new ArrayList<>();
            for (int rank = 0; rank < ranks; rank++) {
                try (NDManager manager = NDManager.newBaseManager();
                        Autograd.GradMode mode = Autograd.gradMode(true)) {
                    Cut cut = Cut.balanced(5, ranks);
                    NDArray values = part(manager.ones(new Shape(5, 1)), cut, rank).duplicate();
                    values.setRequiresGradient(true);
                    NDArray ids = manager.create(new long[] {0, 4, 2, 4, 1, 2});
                    NDArray rows = new TableShard(cut, rank, 2).rows(values, ids);
                    Autograd.backward(rows, rows.onesLike());
                    for (float gradient : Autograd.gradient(values).toFloatArray()) {
                        found.add(gradient);
                    }
                    Assert.assertEquals(new TableShard(cut, rank, 2).trainedPlaces(ids)[2], -1);
                }
            }
            Assert.assertEquals(found, List.of(1f, 1f, 0f, 0f, 2f));
        }
    }

    @Test
    public void idsThatAreNone() {
        TableShard shard = new TableShard(Cut.balanced(5, 2), 0, -1);
        shard.check(manager.create(new long[] {0, 4}), "table");
        shard.check(manager.create(new long[0]), "table");
        shard.check(manager.create(new float[] {4}), "table");
        for (NDArray ids :
                List.of(
                        manager.create(new long[] {0, 5}),
                        manager.create(new int[] {0, -1}),
                        manager.create(new float[] {0, Float.NaN}),
                        manager.create(new float[] {0, 5}))) {
            Refusals.throwsArgument(
                    () -> shard.check(ids, "table"), "at the position [1] of ids (2)");
        }
    }

    /** What is done for a batch follows from its rows, however many the table has. */
    @Test
    public void theRowsOfBagsInATableOfAnyLength() {
        int[] ids = {7, Integer.MAX_VALUE, 0, 7, 7, 3};
        EmbeddingBags.Transposed byRow = EmbeddingBags.padded(ids, 2, false).transposed();
        Assert.assertEquals(byRow.rows(), new long[] {3, 7, Integer.MAX_VALUE});
        Assert.assertEquals(byRow.offsets(), new long[] {0, 1, 4});
        Assert.assertEquals(byRow.bags(), new long[] {2, 0, 1, 2, 0});
        EmbeddingBags.Transposed part = byRow.part(1, 3);
        Assert.assertEquals(part.rows(), new long[] {7, Integer.MAX_VALUE});
        Assert.assertEquals(part.offsets(), new long[] {0, 3});
        Assert.assertEquals(part.bags(), new long[] {0, 1, 2, 0});
        int[] weighted = {9, Float.floatToRawIntBits(2), 0, 0, 4, Float.floatToRawIntBits(3)};
        byRow = EmbeddingBags.padded(weighted, 2, true).transposed();
        Assert.assertEquals(byRow.rows(), new long[] {4, 9});
        Assert.assertEquals(byRow.weights(), new float[] {3, 2});
    }

    /** Rows that are updated a few at a time get what they get all at once. */
    @Test
    public void theRowsOfALargeBatch() {
        int[] ids = new SplittableRandom(1).ints(60_000, 0, 1 << 20).toArray();
        EmbeddingBags bags = EmbeddingBags.padded(ids, 60, false);
        long[] sorted = Arrays.stream(ids).filter(i -> i > 0).sorted().asLongStream().toArray();
        Assert.assertEquals(bags.transposed().rows(), Arrays.stream(sorted).distinct().toArray());
        NDArray table = manager.zeros(new Shape(1 << 20, 8));
        NDArray gradient = manager.ones(new Shape(1000, 8));
        WeightUpdate update = WeightUpdate.sgd(WeightUpdate.Settings.DEFAULT, 0);
        update.begin(1, 1);
        bags.update(table, gradient, update);
        float[] expected = new float[1 << 20];
        Arrays.stream(sorted).forEach(row -> expected[(int) row]--);
        Assert.assertEquals(table.get(":, 7").toFloatArray(), expected);
        Assert.assertEquals(table.get(":, 0").toFloatArray(), expected);
    }

    /** Bags are as long as they are, whoever has written them. */
    @Test
    public void bagsOfSeveralRanks() {
        int two = Float.floatToRawIntBits(2);
        EmbeddingBags first = EmbeddingBags.padded(new int[] {9, two, 0, 0, 0, 0, 4, two}, 4, true);
        EmbeddingBags second = EmbeddingBags.padded(new int[] {0, 0, 0, 5, 0, 6}, 3, false);
        Assert.assertEquals(first.toInts(false), new int[] {1, 1, 9, 4});
        Assert.assertEquals(second.toInts(false), new int[] {0, 2, 5, 6});
        int one = Float.floatToRawIntBits(1);
        int[] both = {1, 1, 0, 2, 9, 4, 5, 6, two, two, one, one};
        EmbeddingBags joined = EmbeddingBags.join(List.of(first, second));
        Assert.assertEquals(joined.toInts(true), both);
        Assert.assertEquals(EmbeddingBags.of(both, 0, 4, true).toInts(true), both);
        Assert.assertEquals(joined.transposed().bags(), new long[] {1, 3, 3, 0});
    }

    @Test
    public void noRows() {
        Assert.assertEquals(
                EmbeddingBags.padded(new int[2], 1, false).transposed().rows().length, 0);
    }

    /** The lower 32 bits of each of them are a row of the table. */
    @Test
    public void aRowOf64BitsIsNoOther() {
        for (long id : new long[] {(1L << 32) + 3, (1L << 31) + 1, 2 - (1L << 32)}) {
            int[] places = EmbeddingBags.places(manager.create(new long[][] {{id}}), null);
            Assert.assertFalse(EmbeddingBags.areIn(places, false, 5), id + "");
        }
        NDArray ids = manager.create(new long[][] {{4, 0}});
        Assert.assertEquals(EmbeddingBags.places(ids, null), new int[] {4, 0});
    }
}
