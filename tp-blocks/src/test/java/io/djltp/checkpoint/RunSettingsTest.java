package io.djltp.checkpoint;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.nio.file.Path;
import java.util.List;
import java.util.Map;

/** What of a listener's settings the processes of a job compare. */
public class RunSettingsTest {

    /** A set of Java's has another order in each process. */
    @Test
    public void theOrderOfSignalsDoesNotMatter() {
        Map<String, String> compared = compared("TERM", "INT");
        Assert.assertEquals(compared("INT", "TERM"), compared);
        Assert.assertNotEquals(compared("INT", "USR1"), compared);
    }

    private static Map<String, String> compared(String... signals) {
        return CheckpointListener.builder()
                .setFolder(Path.of("folder"))
                .optSignals(List.of(signals))
                .settings();
    }
}
