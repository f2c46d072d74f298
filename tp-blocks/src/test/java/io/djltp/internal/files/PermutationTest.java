package io.djltp.internal.files;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.stream.IntStream;

public class PermutationTest {

    @DataProvider
    public Object[][] sizes() {
        return new Object[][] {{1}, {2}, {3}, {16}, {17}, {1000}, {65537}};
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void everyNumberComesOnce(int size) {
        Permutation order = new Permutation(size, Permutation.key(3, 1));
        int[] sorted = IntStream.range(0, size).map(order::get).sorted().toArray();
        Assert.assertEquals(sorted, IntStream.range(0, size).toArray());
    }

    @Test
    public void orderDependsOnSeedAndNumber() {
        Assert.assertEquals(order(3, 1), order(3, 1));
        Assert.assertNotEquals(order(3, 1), order(3, 2));
        Assert.assertNotEquals(order(3, 1), order(4, 1));
    }

    @Test
    public void neighboursAreScattered() {
        int[] order = order(5, 0);
        int close = 0;
        for (int i = 1; i < order.length; i++) {
            if (Math.abs(order[i] - order[i - 1]) < 10) {
                close++;
            }
        }
        // 18 of 999 distances in a random order, and 40 is more than 5 sigma away
        Assert.assertTrue(close < 40, close + " neighbours stayed close");
    }

    private static int[] order(long seed, long number) {
        Permutation order = new Permutation(1000, Permutation.key(seed, number));
        return IntStream.range(0, 1000).map(order::get).toArray();
    }
}
