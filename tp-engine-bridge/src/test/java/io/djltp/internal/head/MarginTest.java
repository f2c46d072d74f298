package io.djltp.internal.head;

import io.djltp.head.Margin;
import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** The cosines that margins make. */
public class MarginTest {

    private static final double PI = Math.PI;

    /** The angle, and the cosine and its derivative by the cosine that are expected. */
    @DataProvider
    public Object[][] angles() {
        Margin arc = Margin.arcFace(64, 0.5f);
        Margin cos = Margin.cosFace(64, 0.35f);
        Margin twice = Margin.combined(64, 2, 0, 0);
        Margin all = Margin.combined(64, 1, 0.3f, 0.2f);
        return new Object[][] {
            // cos(pi/3 + 0.5) = cos(1.5471976) = 0.0235966; sin(1.5471976)/sin(pi/3) = 1.1543790
            {arc, PI / 3, 0.0235966, 1.1543790},
            // cos(pi/2 + 0.5) = -sin(0.5); cos(0.5)/1
            {arc, PI / 2, -0.4794255, 0.8775826},
            // 2.9 + 0.5 = 3.4 > pi: -cos(3.4) - 2 = 0.9667982 - 2; |sin(3.4)|/sin(2.9)
            {arc, 2.9, -1.0332018, 1.0680954},
            {cos, PI / 3, 0.15, 1},
            {cos, 0, 0.65, 1},
            // cos(2 t) = 2 cos(t)^2 - 1, whose derivative is 4 cos(t)
            {twice, PI / 3, -0.5, 2},
            // beyond pi: -cos(4 pi/3) - 2 = -1.5; 2 |sin(4 pi/3)| / sin(2 pi/3) = 2
            {twice, 2 * PI / 3, -1.5, 2},
            // cos(1.3471976) - 0.2 = 0.2217402 - 0.2; sin(1.3471976)/sin(pi/3)
            {all, PI / 3, 0.0217402, 1.1259552}
        };
    }

    @Test(dataProvider = "angles")
    public void equalsWhatIsComputedByHand(Margin margin, double angle, double y, double slope) {
        Assert.assertEquals(MarginLabels.apply(margin, Math.cos(angle)), y, 1e-6);
        Assert.assertEquals(MarginLabels.slope(margin, Math.cos(angle)), slope, 1e-6);
    }

    /** Larger angles never pay, and the slope is the derivative. */
    @Test
    public void fallsWithTheAngle() {
        for (Margin margin :
                new Margin[] {
                    Margin.arcFace(1, 0.5f), Margin.arcFace(1, 3), Margin.combined(1, 4, 0.3f, 0.1f)
                }) {
            double before = MarginLabels.apply(margin, 1);
            for (double angle = 0.01; angle < PI - 0.01; angle += 0.01) {
                double cosine = Math.cos(angle);
                double now = MarginLabels.apply(margin, cosine);
                Assert.assertTrue(now <= before && before - now < 0.1, "at " + angle);
                before = now;
                double h = 1e-7;
                double difference =
                        (MarginLabels.apply(margin, cosine + h)
                                        - MarginLabels.apply(margin, cosine - h))
                                / (2 * h);
                Assert.assertEquals(
                        MarginLabels.slope(margin, cosine), difference, 2e-3, "at " + angle);
            }
        }
    }

    @Test
    public void roundingBeyondOneIsNoHarm() {
        Margin margin = Margin.arcFace(64, 0.5f);
        Assert.assertEquals(MarginLabels.apply(margin, 1 + 1e-7), Math.cos(0.5), 1e-6);
        Assert.assertTrue(
                MarginLabels.slope(margin, 1 + 1e-7) > 0
                        && MarginLabels.slope(margin, 1 + 1e-7) < 1000);
        Assert.assertTrue(Double.isFinite(MarginLabels.slope(margin, -1 - 1e-7)));
    }

    @DataProvider
    public Object[][] bad() {
        return new Object[][] {
            {0f, 1f, 0f, 0f, "scale"},
            {64f, 0.5f, 0f, 0f, "m1"},
            {64f, 1f, 3.2f, 0f, "m2"},
            {64f, 1f, -0.1f, 0f, "m2"},
            {64f, 1f, 0f, Float.NaN, "m3"}
        };
    }

    @Test(dataProvider = "bad")
    public void badValuesAreRefused(float scale, float m1, float m2, float m3, String name) {
        String message = Refusals.throwsArgument(() -> Margin.combined(scale, m1, m2, m3));
        Assert.assertTrue(message.startsWith("The " + name + " of a margin"), name);
    }
}
