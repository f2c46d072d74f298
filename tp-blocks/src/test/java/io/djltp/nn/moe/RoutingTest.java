package io.djltp.nn.moe;

import io.djltp.nn.moe.Router.Choices;
import io.djltp.nn.moe.Router.Routing;
import io.djltp.nn.moe.Router.TokenCounts;
import io.djltp.nn.moe.TokenDispatch.Arrival;
import io.djltp.nn.moe.TokenDispatch.Plan;
import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.annotations.Test;

/** Choices, capacity and the order of rows, worked out by hand. */
public class RoutingTest {

    private static final float NONE = Float.NEGATIVE_INFINITY;

    /** Of equal logits the expert with the lower number is the better one. */
    @Test
    public void choices() {
        float[] logits = {
            1, 3, 2, 0, //
            5, 5, 5, 5, //
            0, 7, 0, 7, //
            NONE, NONE, NONE, 1
        };
        Routing routing = Routing.of(logits, 4, 2);
        Assert.assertEquals(routing.chosen(), new int[] {1, 2, 0, 1, 1, 3, 3, 0});
        Assert.assertTrue(routing.valid());
        Assert.assertEquals(routing.counts(), new long[] {1, 2, 0, 1, 1, 1, 1, 1});
        Assert.assertEquals(routing.places(), new long[] {1, 2, 4, 5, 9, 11, 15, 12});
        Assert.assertEquals(Routing.of(logits, 4, 1).chosen(), new int[] {1, 0, 1, 3});
        Assert.assertEquals(Routing.of(new float[0], 4, 2).counts(), new long[8]);
    }

    @Test
    public void logitsThatAreNoNumbers() {
        for (float bad : new float[] {Float.NaN, Float.POSITIVE_INFINITY}) {
            Routing routing = Routing.of(new float[] {0, 1, bad, 0}, 2, 1);
            Assert.assertFalse(routing.valid());
            Refusals.throwsArgument(
                    () -> TokenCounts.gather(null, null, routing, 1), "not a number");
        }
    }

    /** First choices of all ranks come before second ones, and then the order of the batch. */
    @Test
    public void whatIsDropped() {
        // the first choice of everyone but the last token is expert 0, of which it is the second
        Routing first = new Routing(2, 2, 2, new int[] {0, 1, 0, 1}, true);
        Routing second = new Routing(2, 2, 2, new int[] {0, 1, 1, 0}, true);
        long[][] both = {first.counts(), second.counts()};
        // ceil(0.7 * 4 * 2 / 2) = 3
        TokenCounts counts = new TokenCounts(both, 4, 2, 2, 0.7);
        Assert.assertEquals(counts.kept(), new long[][] {{2, 2}, {1, 1}});
        Assert.assertEquals(counts.isKept(first, 0), new boolean[] {true, true, true, true});
        // expert 0 is full, and of expert 1 the third second choice is one too many
        Assert.assertEquals(counts.isKept(second, 1), new boolean[] {true, false, true, false});
        Assert.assertEquals(counts.shares(), new double[] {0.5, 0.5});
        // one rank with all tokens drops the same
        Routing whole = new Routing(4, 2, 2, new int[] {0, 1, 0, 1, 0, 1, 1, 0}, true);
        TokenCounts alone = new TokenCounts(new long[][] {whole.counts()}, 4, 2, 2, 0.7);
        Assert.assertEquals(
                alone.isKept(whole, 0),
                new boolean[] {true, true, true, true, true, false, true, false});
    }

    @Test
    public void withoutACapacityNothingIsDropped() {
        Routing routing = new Routing(3, 5, 1, new int[] {4, 4, 4}, true);
        TokenCounts counts = TokenCounts.gather(null, null, routing, Double.POSITIVE_INFINITY);
        Assert.assertEquals(counts.isKept(routing, 0), new boolean[] {true, true, true});
        Assert.assertEquals(counts.kept(), new long[][] {{0, 0, 0, 0, 3}});
    }

    @Test
    public void rowsComeInTheOrderOfTheExperts() {
        Routing routing = new Routing(3, 3, 2, new int[] {2, 0, 0, 1, 2, 1}, true);
        Choices choices = new Choices(routing, new boolean[] {true, true, true, true, false, true});
        Plan all = Plan.of(choices, 0, 3, new int[] {0, 1, 2});
        Assert.assertEquals(all.tokens(), new long[] {0, 1, 1, 2, 0});
        Assert.assertEquals(all.slots(), new long[] {1, 2, 3, 5, 0});
        Assert.assertEquals(all.counts(), new long[] {2, 2, 1});
        Plan last = Plan.of(choices, 1, 3, new int[] {2, 1});
        Assert.assertEquals(last.tokens(), new long[] {0, 1});
        Assert.assertEquals(last.slots(), new long[] {1, 3});
        Assert.assertEquals(last.counts(), new long[] {0, 2});
    }

    /** Two ranks send to experts 1 and 2, which are here. */
    @Test
    public void rowsThatArriveAreSortedByExpert() {
        Arrival order = Arrival.of(new long[][] {{9, 1, 2}, {9, 2, 0}}, new int[] {1, 2});
        Assert.assertEquals(order.received(), new long[] {3, 2});
        Assert.assertEquals(order.counts(), new long[] {3, 2});
        Assert.assertEquals(order.byExpert(), new long[] {0, 3, 4, 1, 2});
        Assert.assertEquals(order.byRank(), new long[] {0, 3, 4, 1, 2});
    }
}
