package io.djltp.collective;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.Arrays;

/** All ranks get the numbers of all, in the order of the ranks. */
public class GatheredNumbersTest {

    @Test(timeOut = 60_000)
    public void asManyOnEveryRank() throws Exception {
        RankThreads.run(
                3,
                (group, manager) -> {
                    long[] own = {group.getRank(), Long.MIN_VALUE + group.getRank()};
                    long least = Long.MIN_VALUE;
                    Assert.assertEquals(
                            GatheredNumbers.of(group, manager, own, "numbers"),
                            new long[] {0, least, 1, least + 1, 2, least + 2});
                });
    }

    /** A rank may have none, of which DJL would make a scalar. */
    @Test(timeOut = 60_000)
    public void othersOnEachRank() throws Exception {
        long[] lengths = {2, 0, 1};
        RankThreads.run(
                3,
                (group, manager) -> {
                    long[] own = new long[(int) lengths[group.getRank()]];
                    Arrays.fill(own, 10 + group.getRank());
                    Assert.assertEquals(
                            GatheredNumbers.of(group, manager, own, lengths, "numbers"),
                            new long[] {10, 10, 12});
                });
    }
}
