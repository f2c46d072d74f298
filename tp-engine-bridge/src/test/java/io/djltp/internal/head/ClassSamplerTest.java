package io.djltp.internal.head;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.List;
import java.util.stream.LongStream;

/** What is drawn has the labels, has the right size, and is otherwise up to chance alone. */
public class ClassSamplerTest {

    private static final Cut ONE = Cut.ofLengths(1000);

    private static ClassSampler sampler(Cut cut, int rank, float share, long seed) {
        return new ClassSampler(new ClassShard(cut, null, rank, cut.getRanks()), share, seed);
    }

    @DataProvider
    public Object[][] shares() {
        return new Object[][] {{0.1f}, {0.49f}, {0.51f}, {0.9f}, {0.999f}};
    }

    @Test(dataProvider = "shares")
    public void drawsLabelsAndOthers(float share) {
        ClassSampler sampler = sampler(ONE, 0, share, 5);
        long[] labels = {0, 17, 17, 332, 999};
        for (long step = 0; step < 20; step++) {
            long[] others = sampler.draw(step, new long[0]);
            Assert.assertEquals(others.length, Math.round(share * 1000));
            long[] drawn = sampler.draw(step, labels);
            long[] expected =
                    LongStream.concat(LongStream.of(others), LongStream.of(labels))
                            .sorted()
                            .distinct()
                            .toArray();
            Assert.assertEquals(drawn, expected);
            Assert.assertTrue(drawn[0] >= 0 && drawn[drawn.length - 1] < 1000);
            Assert.assertEquals(sampler.countClasses(step, labels), drawn.length);
            Assert.assertTrue(drawn.length <= sampler.most(labels.length));
        }
    }

    @DataProvider
    public Object[][] cuts() {
        Cut ranges =
                Cut.of(
                        50_000,
                        3,
                        rank ->
                                List.of(
                                        new ShardRange(rank * 5_000L, 5_000),
                                        new ShardRange(15_000 + rank * 11_000L, 11_000),
                                        new ShardRange(48_000, rank == 2 ? 2_000 : 0)));
        return new Object[][] {
            {Cut.balanced(50_000, 1)},
            {Cut.balanced(50_000, 2)},
            {Cut.balanced(50_000, 3)},
            {Cut.balanced(50_000, 4)},
            {Cut.ofLengths(1, 48_998, 1_000, 1)},
            {Cut.ofLengths(50_000, 0, 0)},
            {ranges}
        };
    }

    /** All ranks together draw what one rank would draw, of many blocks of classes. */
    @Test(dataProvider = "cuts")
    public void drawsTheSameAtAnyCut(Cut cut) {
        long[] labels = {3, 3, 77, 14_999, 15_000, 40_000, 49_999};
        for (float share : new float[] {0.0001f, 0.01f, 0.3f, 0.8f}) {
            long[] expected = sampler(Cut.ofLengths(50_000), 0, share, 4).draw(8, labels);
            LongStream.Builder all = LongStream.builder();
            for (int rank = 0; rank < cut.getRanks(); rank++) {
                ClassShard shard = new ClassShard(cut, null, rank, cut.getRanks());
                long[] columns =
                        LongStream.of(labels)
                                .map(shard::columnOf)
                                .filter(c -> c >= 0)
                                .sorted()
                                .toArray();
                ClassSampler sampler = sampler(cut, rank, share, 4);
                long[] drawn = sampler.draw(8, columns);
                Assert.assertEquals(drawn, LongStream.of(drawn).sorted().distinct().toArray());
                Assert.assertTrue(drawn.length <= sampler.most(columns.length));
                Assert.assertEquals(sampler.countClasses(8, labels), expected.length);
                int[] classes = HeadReference.places(shard.ranges(), 1).toArray();
                LongStream.of(drawn).map(column -> classes[(int) column]).forEach(all::add);
            }
            Assert.assertEquals(all.build().sorted().toArray(), expected, "share " + share);
        }
    }

    /**
     * Each of 200 classes is drawn in each of 4,000 steps with the same probability p, so that its
     * count has the standard deviation sqrt(4000 p (1 - p)): five of them are allowed, and the sum
     * of the squares in these units, which has the mean 200 and a deviation of about 20, must be
     * within 100 of it.
     */
    @Test(dataProvider = "shares")
    public void drawsAllClassesAboutEquallyOften(float share) {
        checkFrequencies(200, share, 4000, 0);
    }

    /** So are the classes of many blocks, a label away from the classes that are counted. */
    @Test
    public void drawsAllClassesOfBlocksAboutEquallyOften() {
        checkFrequencies(9_000, 0.02f, 4000, 1);
        checkFrequencies(9_000, 0.5f, 2000, 1);
    }

    private static void checkFrequencies(int classes, float share, int steps, int labels) {
        ClassSampler sampler = sampler(Cut.ofLengths(classes), 0, share, 11);
        int[] counts = new int[classes];
        for (int step = 0; step < steps; step++) {
            for (long drawn : sampler.draw(step, new long[labels])) {
                counts[(int) drawn]++;
            }
        }
        double p = (double) Math.round((double) share * classes) / classes;
        double deviation = Math.sqrt(steps * p * (1 - p));
        double squares = 0;
        for (int i = labels; i < classes; i++) {
            double off = counts[i] - steps * p;
            Assert.assertTrue(Math.abs(off) <= 5 * deviation, "off by " + off);
            squares += deviation == 0 ? 1 : off * off / (deviation * deviation);
        }
        Assert.assertEquals(squares, classes, classes > 200 ? 0.1 * classes : 100);
    }

    @Test
    public void drawsTheSameAgainAndOthersElsewhere() {
        long[] drawn = draw(3, 7);
        Assert.assertEquals(draw(3, 7), drawn);
        for (long[] other : new long[][] {draw(4, 7), draw(3, 8)}) {
            long same =
                    Arrays.stream(other).filter(c -> Arrays.binarySearch(drawn, c) >= 0).count();
            // 100 of 1000: 10 are expected in common
            Assert.assertTrue(same < 30, same + " in common");
        }
    }

    private static long[] draw(long seed, long step) {
        return sampler(ONE, 0, 0.1f, seed).draw(step, new long[] {1});
    }

    /** A rank of whose classes none is drawn has none. */
    @Test
    public void aRankMayHaveNone() {
        Cut cut = Cut.ofLengths(998, 1, 1);
        ClassSampler sampler = sampler(cut, 1, 0.01f, 0);
        int steps = 0;
        while (sampler.draw(steps, new long[0]).length > 0) {
            steps++;
        }
        Assert.assertTrue(steps < 10, steps + " steps");
        Assert.assertEquals(sampler.draw(steps, new long[] {0}), new long[] {0});
        Assert.assertEquals(sampler.most(5), 1);
    }

    @Test
    public void twoClassesAreTheLeast() {
        Cut cut = Cut.balanced(100, 1);
        Assert.assertEquals(sampler(cut, 0, 0.0151f, 0).draw(0, new long[0]).length, 2);
        assertThrows(cut, 0.01f, "it is 1 class. The least share is 0.0151");
        assertThrows(cut, 0.001f, "it is no class.");
    }

    private static void assertThrows(Cut cut, float share, String message) {
        String said = Refusals.throwsArgument(() -> sampler(cut, 0, share, 0));
        String start = "A sample share of " + share + " of 100 classes leaves no negatives: ";
        Assert.assertTrue(said.startsWith(start + message), said);
    }
}
