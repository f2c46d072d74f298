package io.djltp.nn.attention;

import io.djltp.cut.ShardRange;
import io.djltp.nn.attention.AttentionShape.LocalHeads;
import io.djltp.sharding.AxisPart;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/** Which heads a rank has, and which of its key/value heads each of its query heads uses. */
public class AttentionCutTest {

    /** 32 query heads and 8 key/value heads. */
    @DataProvider
    public Object[][] sizes() {
        return new Object[][] {{4, 8, 2}, {8, 4, 1}, {16, 2, 1}, {32, 1, 1}};
    }

    @Test(dataProvider = "sizes")
    public void groupedHeads(int ranks, int queries, int keyValues) {
        AttentionShape shape = AttentionShape.of(128, 32, 8, 0);
        for (int rank = 0; rank < ranks; rank++) {
            LocalHeads local = LocalHeads.of(shape.headCut(ranks), 8, rank);
            Assert.assertEquals(local.queries(), queries);
            Assert.assertEquals(local.keyValues(), keyValues);
            ShardRange keys = AxisPart.keyValueHeads(32, 8, 1).cut(ranks).getRange(rank);
            Assert.assertEquals(keys.start(), rank * 8L / ranks, "of rank " + rank);
            Assert.assertEquals(keys.length(), keyValues);
        }
    }

    /** Whatever the numbers: query head h uses key/value head floor(h Hkv / H). */
    @Test
    public void aQueryHeadUsesTheKeyHeadOfItsGroup() {
        for (int groups = 1; groups <= 6; groups++) {
            for (int each = 1; each <= 5; each++) {
                for (int ranks = 1; ranks <= groups * each; ranks++) {
                    check(groups * each, groups, ranks);
                }
            }
        }
    }

    private static void check(int heads, int groups, int ranks) {
        AttentionShape shape = AttentionShape.of(heads, heads, groups, 1);
        for (int rank = 0; rank < ranks; rank++) {
            LocalHeads local = LocalHeads.of(shape.headCut(ranks), groups, rank);
            ShardRange queries = shape.headCut(ranks).getRange(rank);
            ShardRange keys = AxisPart.keyValueHeads(heads, groups, 1).cut(ranks).getRange(rank);
            List<Long> used = new ArrayList<>();
            for (int i = 0; i < local.keyValues(); i++) {
                for (int j = 0; j < local.shares().get(i); j++) {
                    used.add(keys.start() + i);
                }
            }
            List<Long> expected = new ArrayList<>();
            for (long head = queries.start(); head < queries.end(); head++) {
                expected.add(head * groups / heads);
            }
            String what = heads + " heads, " + groups + " groups, rank " + rank + " of " + ranks;
            Assert.assertEquals(used, expected, what);
            Assert.assertEquals(local.queries(), expected.size(), what);
        }
    }
}
