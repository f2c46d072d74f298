package io.djltp.examples;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.List;

/** {@code tp help}, which is what many type first. */
public class HelpTest {

    @Test
    public void commandsAndTheirOptions() {
        TpRun.of("help").assertPrints(0, "Usage: tp ", "checkpoint", "doctor");
        TpRun.of("help", "train").assertPrints(0, "Usage: tp train", "--languages");
    }

    /** A command that is asked for is read alone, and by {@code tp help} with all others. */
    @Test
    public void aCommandAloneIsTheSame() {
        for (String command : List.of("train", "bench", "checkpoint")) {
            Assert.assertEquals(
                    TpRun.of(command, "--help").output(), TpRun.of("help", command).output());
        }
        TpRun unknown = TpRun.of("trian");
        unknown.assertPrints(2, "train");
    }
}
