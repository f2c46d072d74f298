package io.djltp.cut;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.SplittableRandom;

/** Ranges are balanced, contiguous, disjoint and cover the axis. */
public class ShardRangeTest {

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
        long start = 0;
        for (int rank = 0; rank < lengths.length; rank++) {
            ShardRange range = ShardRange.balanced(total, rank, lengths.length);
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
            long end = 0;
            for (int rank = 0; rank < size; rank++) {
                ShardRange range = ShardRange.balanced(total, rank, size);
                Assert.assertEquals(range.start(), end);
                long least = total / size;
                long most = least + (total % size == 0 ? 0 : 1);
                Assert.assertTrue(range.length() == least || range.length() == most);
                // never more than the rank before
                Assert.assertTrue(
                        rank == 0
                                || range.length()
                                        <= ShardRange.balanced(total, rank - 1, size).length());
                end = range.end();
            }
            Assert.assertEquals(end, total);
        }
    }

    @Test
    public void impossibleRangesAreRefused() {
        assertRefused(-1, 0, 2);
        assertRefused(10, -1, 2);
        assertRefused(10, 2, 2);
        assertRefused(10, 0, 0);
    }

    private static void assertRefused(long total, int rank, int size) {
        String message =
                Assert.expectThrows(
                                IllegalArgumentException.class,
                                () -> ShardRange.balanced(total, rank, size))
                        .getMessage();
        Assert.assertEquals(
                message, "No range of " + total + " elements for rank " + rank + " of " + size);
    }
}
