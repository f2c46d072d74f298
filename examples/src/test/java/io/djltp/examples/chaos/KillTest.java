package io.djltp.examples.chaos;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.Test;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/** A few of the kills of {@code examples/chaos.sh}. */
public class KillTest {

    /** A process that is frozen while it trains, and one that is killed while it starts. */
    @Test(timeOut = 180_000)
    public void survivorsEndWithOneClearError() throws Exception {
        run(2, 20260102);
    }

    @Test(groups = "sweep", timeOut = 180_000)
    public void survivorsOfMoreKillsEndWithOneClearError() throws Exception {
        run(Integer.getInteger("chaos.kills", 4), 20260101);
    }

    private static void run(int kills, long seed) throws Exception {
        if (File.separatorChar != '/') {
            throw new SkipException("There are no signals to freeze a process with");
        }
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        Chaos chaos = new Chaos(new PrintStream(bytes, true, StandardCharsets.UTF_8));
        boolean good = chaos.run(kills, seed);
        Assert.assertTrue(good, bytes.toString(StandardCharsets.UTF_8));
    }
}
