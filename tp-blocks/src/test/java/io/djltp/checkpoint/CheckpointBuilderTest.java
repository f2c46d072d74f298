package io.djltp.checkpoint;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Path;
import java.util.Map;

/** What cannot be is refused with its value. */
public class CheckpointBuilderTest {

    @DataProvider
    public Object[][] refused() {
        return new Object[][] {
            {
                (Assert.ThrowingRunnable) () -> builder().optEverySteps(0),
                "The steps between checkpoints must be 1 or more, not 0"
            },
            {
                (Assert.ThrowingRunnable) () -> builder().optEveryMinutes(-0.5),
                "The minutes between checkpoints must be above 0, not -0.5"
            },
            {
                (Assert.ThrowingRunnable) () -> builder().optEveryMinutes(Double.NaN),
                "The minutes between checkpoints must be above 0, not NaN"
            },
            {
                (Assert.ThrowingRunnable) () -> builder().optKeep(0),
                "The checkpoints to keep must be 1 or more, not 0"
            },
            {
                (Assert.ThrowingRunnable) () -> CheckpointListener.builder().build(),
                "A CheckpointListener needs a folder: setFolder(path)"
            },
        };
    }

    @Test(dataProvider = "refused")
    public void theErrorNamesTheValue(Assert.ThrowingRunnable call, String message) {
        Exception e = Assert.expectThrows(IllegalArgumentException.class, call);
        Assert.assertEquals(e.getMessage(), message);
    }

    /** What the processes of a job compare: a set of Java's has another order in each. */
    @Test
    public void theOrderOfSignalsDoesNotMatter() {
        Map<String, String> settings = builder().optSignals("TERM", "INT").settings();
        Assert.assertEquals(builder().optSignals("INT", "TERM").settings(), settings);
        Assert.assertNotEquals(builder().optSignals("INT", "USR1").settings(), settings);
    }

    private static CheckpointListener.Builder builder() {
        return CheckpointListener.builder().setFolder(Path.of("unused"));
    }
}
