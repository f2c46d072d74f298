package io.djltp.collective;

import io.djltp.internal.collective.CollectiveCall;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.Arrays;

/** The shares of many ranks are told in few words, which differ where the shares do. */
public class CollectiveCallTest {

    @Test
    public void sharesAreToldInFewWords() {
        assertText("[4, 4, 3]", 4, 4, 3);
        long[] shares = new long[10_000];
        Arrays.fill(shares, 0, 3, 5);
        Arrays.fill(shares, 3, 10_000, 4);
        assertText("[3 x 5, 9997 x 4]", shares);
        shares[9_999] = 7;
        assertText("[3 x 5, 9996 x 4, 7]", shares);
        shares[9_998] = 7;
        assertText("[3 x 5, 9995 x 4, 2 x 7]", shares);
    }

    private static void assertText(String text, long... shares) {
        Assert.assertEquals(call(shares).describe(), "all-gather #1 in shares " + text);
    }

    @Test
    public void aCallOfManyRanksIsShort() {
        CollectiveCall call = call(new long[64]);
        Assert.assertTrue(call.getAgreement().length() < 100, call.getAgreement());
        long[] other = new long[64];
        other[63] = 1;
        Assert.assertNotEquals(call(other).getAgreement(), call.getAgreement());
    }

    private static CollectiveCall call(long... shares) {
        return new CollectiveCall(Collective.ALL_GATHER, 1, "", null, "").withShares(shares, null);
    }
}
