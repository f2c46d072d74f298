package io.djltp.examples;

import org.testng.Assert;
import org.testng.annotations.Test;

/** {@code tp help}, which is what many type first. */
public class HelpTest {

    @Test
    public void commandsAndTheirOptions() {
        assertPrints(TpRun.of("help"), "Usage: tp ", "checkpoint", "doctor");
        assertPrints(TpRun.of("help", "train"), "Usage: tp train", "--languages");
    }

    private static void assertPrints(TpRun run, String... parts) {
        Assert.assertEquals(run.status(), 0, run.output());
        for (String part : parts) {
            Assert.assertTrue(run.output().contains(part), part + " in: " + run.output());
        }
    }
}
