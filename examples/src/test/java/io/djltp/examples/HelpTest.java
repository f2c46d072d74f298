package io.djltp.examples;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.List;

/** {@code tp help}, which is what many type first. */
public class HelpTest {

    @Test
    public void commandsAndTheirOptions() {
        assertPrints(TpRun.of("help"), "Usage: tp ", "checkpoint", "doctor");
        assertPrints(TpRun.of("help", "train"), "Usage: tp train", "--languages");
    }

    /** A command that is asked for is read alone, and by {@code tp help} with all others. */
    @Test
    public void aCommandAloneIsTheSame() {
        for (String command : List.of("train", "bench", "checkpoint")) {
            Assert.assertEquals(
                    TpRun.of(command, "--help").output(), TpRun.of("help", command).output());
        }
        TpRun unknown = TpRun.of("trian");
        Assert.assertEquals(unknown.status(), 2, unknown.output());
        Assert.assertTrue(unknown.output().contains("train"), unknown.output());
    }

    private static void assertPrints(TpRun run, String... parts) {
        Assert.assertEquals(run.status(), 0, run.output());
        for (String part : parts) {
            Assert.assertTrue(run.output().contains(part), part + " in: " + run.output());
        }
    }
}
