package io.djltp.conformance;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.Random;

/** Conformance case 1: the first {@code n mod p} ranks get one element more. */
public class RangesOfRanksTest {

    @Test
    public void theFirstRanksGetOneMore() {
        Assert.assertEquals(Cut.balanced(10, 3).getShardLengths(), new long[] {4, 3, 3});
        Assert.assertEquals(Cut.balanced(10, 4).getShardLengths(), new long[] {3, 3, 2, 2});
        Assert.assertEquals(Cut.balanced(257, 4).getShardLengths(), new long[] {65, 64, 64, 64});
        Assert.assertEquals(
                Cut.balanced(151674, 4).getShardLengths(), new long[] {37919, 37919, 37918, 37918});
        Assert.assertEquals(Cut.balanced(3, 4).getShardLengths(), new long[] {1, 1, 1, 0});
    }

    @Test
    public void rangesAreContiguousDisjointAndCoverTheAxis() {
        Random random = new Random(1);
        for (int i = 0; i < 1000; i++) {
            long length = random.nextInt(i % 2 == 0 ? 40 : 1_000_000);
            int ranks = 1 + random.nextInt(32);
            Cut cut = Cut.balanced(length, ranks);
            long end = 0;
            for (int rank = 0; rank < ranks; rank++) {
                ShardRange range = cut.getRange(rank);
                Assert.assertEquals(range.start(), end, cut.toString());
                long expected = length / ranks + (rank < length % ranks ? 1 : 0);
                Assert.assertEquals(range.length(), expected, cut.toString());
                end = range.end();
            }
            Assert.assertEquals(end, length);
        }
    }
}
