package io.djltp.examples;

import org.testng.Assert;
import org.testng.annotations.Test;

/** The ways to compute a head. */
public class HeadKindTest {

    /** Of few classes too: two at least are drawn, or the head would refuse to be built. */
    @Test
    public void theDefaultShareIsOneThatAHeadTakes() {
        for (int classes = 1; classes <= 10_000; classes++) {
            float share = HeadKind.defaultShare(classes);
            long drawn = Math.round((double) share * classes);
            Assert.assertTrue(drawn >= Math.min(2, classes), share + " of " + classes);
            HeadKind.SAMPLED.builder(classes, share, 1).build();
        }
        Assert.assertEquals(HeadKind.defaultShare(120_658), 6_000f / 120_658);
    }
}
