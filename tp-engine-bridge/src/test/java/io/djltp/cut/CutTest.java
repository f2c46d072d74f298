package io.djltp.cut;

import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;
import java.util.SplittableRandom;

/** Ranges are balanced, contiguous, disjoint and cover the axis. */
public class CutTest {

    /** Returns cases worked out by hand. */
    @DataProvider
    public static Object[][] cases() {
        return new Object[][] {
            {10, new long[] {4, 3, 3}},
            {10, new long[] {3, 3, 2, 2}},
            {257, new long[] {65, 64, 64, 64}},
            {151_674, new long[] {37_919, 37_919, 37_918, 37_918}},
            {3, new long[] {1, 1, 1, 0}},
            {0, new long[] {0, 0}},
            {7, new long[] {7}},
        };
    }

    @Test(dataProvider = "cases")
    public void theFirstRanksGetOneMore(long total, long[] lengths) {
        Cut cut = Cut.balanced(total, lengths.length);
        long start = 0;
        for (int rank = 0; rank < lengths.length; rank++) {
            ShardRange range = cut.getRange(rank);
            Assert.assertEquals(range, new ShardRange(start, lengths[rank]));
            start += lengths[rank];
            Assert.assertEquals(range.end(), start);
        }
        Assert.assertEquals(start, total);
    }

    @Test
    public void anyRangesCoverTheAxisWithoutGaps() {
        SplittableRandom random = new SplittableRandom(42);
        for (int i = 0; i < 10_000; i++) {
            // small and beyond 32 bits, with more ranks than elements among them
            long total = random.nextLong(1L << random.nextInt(1, 50));
            int size = random.nextInt(1, 1 << random.nextInt(1, 9));
            Cut cut = Cut.balanced(total, size);
            long end = 0;
            for (int rank = 0; rank < size; rank++) {
                ShardRange range = cut.getRange(rank);
                Assert.assertEquals(range.start(), end);
                long least = total / size;
                long most = least + (total % size == 0 ? 0 : 1);
                Assert.assertTrue(range.length() == least || range.length() == most);
                // never more than the rank before
                Assert.assertTrue(rank == 0 || range.length() <= cut.getRange(rank - 1).length());
                end = range.end();
            }
            Assert.assertEquals(end, total);
        }
    }

    @Test
    public void impossibleCutsAreRefused() {
        assertRefused("An axis of length -1 cannot be cut over 2 ranks", () -> Cut.balanced(-1, 2));
        assertRefused("An axis of length 10 cannot be cut over 0 ranks", () -> Cut.balanced(10, 0));
        assertRefused(
                "The element 4 of an axis of length 6 is on no rank of the cut"
                        + " [[ShardRange[start=0, length=4]], [ShardRange[start=5, length=1]]]",
                () -> Cut.of(6, 2, rank -> List.of(new ShardRange(5L * rank, rank == 0 ? 4 : 1))));
        assertRefused(
                "Rank 0 of a cut of an axis of length 6 has the ranges [ShardRange[start=0,"
                        + " length=4], ShardRange[start=3, length=3]], which overlap or are not on"
                        + " the axis",
                () -> Cut.of(6, 1, rank -> List.of(new ShardRange(3, 3), new ShardRange(0, 4))));
    }

    @Test
    public void negativeLengthsAreRefused() {
        assertRefused("A range cannot start at 9 with a length of -1", () -> Cut.ofLengths(9, -1));
        assertRefused("A cut needs the length of one rank or more", () -> Cut.ofLengths());
    }

    private static void assertRefused(String message, Assert.ThrowingRunnable cut) {
        Assert.assertEquals(Refusals.throwsArgument(cut), message);
    }

    @Test
    public void aRankMayHoldSeveralRanges() {
        // the query, key and value rows of one head each, of two stacked over two ranks
        Cut cut =
                Cut.of(
                        12,
                        2,
                        rank ->
                                List.of(
                                        new ShardRange(2L * rank, 2),
                                        new ShardRange(4 + 2L * rank, 2),
                                        new ShardRange(8 + 2L * rank, 2)));
        Assert.assertEquals(cut.getShardLengths(), new long[] {6, 6});
        Assert.assertFalse(cut.isConsecutive());
        Assert.assertTrue(cut.isPartition());
        Assert.assertEquals(cut.getReplicas(1), new int[] {1});
        Assert.assertThrows(IllegalStateException.class, () -> cut.getRange(0));
    }

    @Test
    public void segmentsAreWhatTheSameRanksHold() {
        // rank 0: [0, 4); rank 1: [2, 6), and before that in its shard [6, 7)
        Cut cut =
                Cut.of(
                        7,
                        2,
                        rank ->
                                rank == 0
                                        ? List.of(new ShardRange(0, 4))
                                        : List.of(new ShardRange(6, 1), new ShardRange(2, 4)));
        List<Segment> segments = cut.getSegments();
        Assert.assertEquals(
                segments.toString(),
                List.of(
                                new Segment(new ShardRange(0, 2), List.of(0), List.of(0L)),
                                new Segment(new ShardRange(2, 2), List.of(0, 1), List.of(2L, 1L)),
                                new Segment(new ShardRange(4, 2), List.of(1), List.of(3L)),
                                new Segment(new ShardRange(6, 1), List.of(1), List.of(0L)))
                        .toString());
        Assert.assertTrue(segments.get(1).isReplicated());
        Assert.assertEquals(segments.get(1).getFirstRank(), 0);
        Assert.assertEquals(segments.get(1).getPlace(1), 1);
        Assert.assertEquals(segments.get(2).getPlace(0), -1);
        Assert.assertEquals(Cut.balanced(3, 4).getSegments().size(), 3);
        Assert.assertEquals(Cut.balanced(0, 2).getSegments(), List.of());
    }

    @Test
    public void aRangeMayBeOnSeveralRanks() {
        // two key heads over four ranks
        Cut cut = Cut.of(6, 4, rank -> List.of(new ShardRange(3L * (rank / 2), 3)));
        Assert.assertFalse(cut.isPartition());
        Assert.assertFalse(cut.isConsecutive());
        Assert.assertEquals(cut.getReplicas(3), new int[] {2, 3});
        Assert.assertEquals(Cut.replicated(6, 3).getReplicas(0), new int[] {0, 1, 2});
        Assert.assertEquals(Cut.balanced(5, 2), Cut.ofLengths(3, 2));
        Assert.assertNotEquals(Cut.balanced(5, 2), Cut.ofLengths(2, 3));
        Assert.assertTrue(Cut.ofLengths(2, 3).isConsecutive());
    }
}
