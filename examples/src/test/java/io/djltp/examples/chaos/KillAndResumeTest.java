package io.djltp.examples.chaos;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.Test;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/** A few of the kills of {@code examples/kill-and-resume.sh}. */
public class KillAndResumeTest {

    private static final int KILLS = Integer.getInteger("chaos.resumes", 5);
    private static final int AT_ONCE = 2;
    private static final int EPOCHS = 10; // of 7 steps
    private static final int MOST_STEPS = 16;
    private static final long SEED = 20260101;

    @Test(groups = "sweep", timeOut = 480_000)
    public void killedTrainingsGoOnAsIfNothingHadBeen() throws Exception {
        if (File.separatorChar != '/') {
            throw new SkipException("The signals are those of Unix");
        }
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        PrintStream out = new PrintStream(bytes, true, StandardCharsets.UTF_8);
        boolean good = new KillAndResume(out, EPOCHS, MOST_STEPS).run(KILLS, AT_ONCE, SEED);
        Assert.assertTrue(good, bytes.toString(StandardCharsets.UTF_8));
    }
}
