package io.djltp.collective;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.Arrays;

/** The shares of many ranks are told in few words, which differ where the shares do. */
public class SharesTextTest {

    @Test
    public void fewAreListed() {
        Assert.assertEquals(SharesText.of(new long[] {4, 4, 3}), "[4, 4, 3]");
    }

    @Test
    public void equalNeighboursAreCounted() {
        long[] shares = new long[10_000];
        Arrays.fill(shares, 0, 3, 5);
        Arrays.fill(shares, 3, 10_000, 4);
        Assert.assertEquals(SharesText.of(shares), "[3 x 5, 9997 x 4]");
        shares[9_999] = 7;
        Assert.assertEquals(SharesText.of(shares), "[3 x 5, 9996 x 4, 7]");
        shares[9_998] = 7;
        Assert.assertEquals(SharesText.of(shares), "[3 x 5, 9995 x 4, 2 x 7]");
    }

    @Test
    public void aCallOfManyRanksIsShort() {
        CollectiveCall call = call(new long[64]);
        Assert.assertTrue(call.describe().endsWith(" in shares [64 x 0]"), call.describe());
        Assert.assertTrue(call.getAgreement().length() < 100, call.getAgreement());
        long[] other = new long[64];
        other[63] = 1;
        Assert.assertNotEquals(call(other).getAgreement(), call.getAgreement());
    }

    private static CollectiveCall call(long[] shares) {
        return new CollectiveCall(Collective.ALL_GATHER, 1, "", null, "").withShares(shares, null);
    }
}
