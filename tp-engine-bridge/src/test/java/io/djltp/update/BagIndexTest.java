package io.djltp.update;

import org.testng.Assert;
import org.testng.annotations.Test;

public class BagIndexTest {

    /** Takes what the rows in bags take: a table of 2^31 rows or more has no array of its own. */
    @Test
    public void aLongTableIsTurnedRoundByHand() {
        int[] ids = {7, 3, 7, 0, 0, 0, 3, 2_000_000_000, 0};
        BagIndex index = BagIndex.of(ids, 3, 1L << 40);
        BagIndex.Transposed byRow = index.transposed();
        Assert.assertEquals(byRow.rows(), new long[] {3, 7, 2_000_000_000});
        Assert.assertEquals(byRow.offsets(), new long[] {0, 2, 4});
        Assert.assertEquals(byRow.bags(), new long[] {0, 2, 0, 0, 2});
        Assert.assertEquals(BagIndex.of(new int[4], 2, 10).transposed().rows(), new long[0]);
    }
}
