package io.djltp.head;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;

/** What is drawn has the labels, has the right size, and is otherwise up to chance alone. */
public class ClassSamplerTest {

    @DataProvider
    public Object[][] shares() {
        return new Object[][] {{0.1f}, {0.49f}, {0.51f}, {0.9f}, {0.999f}};
    }

    @Test(dataProvider = "shares")
    public void drawsLabelsAndOthers(float share) {
        for (int rank = 0; rank < 3; rank++) {
            ClassSampler sampler = new ClassSampler(1000, rank, 3, share, 5);
            int classes = rank == 0 ? 334 : 333;
            long[] positives = {0, 17, 17, 332};
            for (long step = 0; step < 20; step++) {
                long[] drawn = sampler.draw(step, positives);
                Assert.assertEquals(drawn.length, Math.round(share * classes));
                for (int i = 1; i < drawn.length; i++) {
                    Assert.assertTrue(drawn[i - 1] < drawn[i]);
                }
                Assert.assertTrue(drawn[0] >= 0 && drawn[drawn.length - 1] < classes);
                for (long positive : positives) {
                    Assert.assertTrue(Arrays.binarySearch(drawn, positive) >= 0);
                }
            }
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
        int classes = 200;
        int steps = 4000;
        ClassSampler sampler = new ClassSampler(classes, 0, 1, share, 11);
        int[] counts = new int[classes];
        for (int step = 0; step < steps; step++) {
            for (long drawn : sampler.draw(step, new long[0])) {
                counts[(int) drawn]++;
            }
        }
        double p = (double) Math.round((double) share * classes) / classes;
        double deviation = Math.sqrt(steps * p * (1 - p));
        double squares = 0;
        for (int count : counts) {
            double off = count - steps * p;
            Assert.assertTrue(Math.abs(off) <= 5 * deviation, "off by " + off);
            squares += deviation == 0 ? 1 : off * off / (deviation * deviation);
        }
        Assert.assertEquals(squares, classes, 100);
    }

    @Test
    public void drawsTheSameAgainAndOthersElsewhere() {
        long[] drawn = draw(3, 1, 7);
        Assert.assertEquals(draw(3, 1, 7), drawn);
        for (long[] other : new long[][] {draw(4, 1, 7), draw(3, 0, 7), draw(3, 1, 8)}) {
            long same =
                    Arrays.stream(other).filter(c -> Arrays.binarySearch(drawn, c) >= 0).count();
            // 50 of 500: 5 are expected in common
            Assert.assertTrue(same < 20, same + " in common");
        }
    }

    private static long[] draw(long seed, int rank, long step) {
        return new ClassSampler(1000, rank, 2, 0.1f, seed).draw(step, new long[] {1});
    }

    /** More labels than the share allows are all used, as in Partial FC. */
    @Test
    public void labelsMayBeMoreThanTheShare() {
        ClassSampler sampler = new ClassSampler(100, 1, 2, 0.04f, 0);
        long[] positives = {1, 4, 9, 16, 25};
        Assert.assertEquals(sampler.draw(0, positives), positives);
        Assert.assertEquals(sampler.draw(0, new long[] {7}).length, 2);
        Assert.assertEquals(sampler.most(3), 3);
        Assert.assertEquals(sampler.most(1000), 50);
        // 2 on the first rank, and five labels on the second
        Assert.assertEquals(sampler.countClasses(new long[] {50, 50, 59, 66, 75, 51}), 2 + 5);
        Assert.assertEquals(sampler.countClasses(new long[] {0, 1, 2, 99}), 3 + 2);
    }

    @Test(
            expectedExceptions = IllegalArgumentException.class,
            expectedExceptionsMessageRegExp =
                    "A sample share of 0.01 of 100 classes leaves no negatives: it is 0 of the 25"
                            + " classes of a rank, of 4. The least share is 0.0201")
    public void noClassOnARankIsRefused() {
        new ClassSampler(100, 3, 4, 0.01f, 0);
    }

    @Test(
            expectedExceptions = IllegalArgumentException.class,
            expectedExceptionsMessageRegExp = ".*leaves no negatives: it is 1 of the 100 classes.*")
    public void oneClassIsRefused() {
        new ClassSampler(100, 0, 1, 0.01f, 0);
    }

    @Test
    public void theLeastShareIsEnough() {
        Assert.assertEquals(new ClassSampler(100, 3, 4, 0.0201f, 0).most(0), 1);
        Assert.assertEquals(new ClassSampler(100, 0, 1, 0.0151f, 0).most(0), 2);
    }
}
