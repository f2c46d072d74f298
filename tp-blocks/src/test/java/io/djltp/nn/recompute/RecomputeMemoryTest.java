package io.djltp.nn.recompute;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The activations of a deep stack do not live at the same time, measured as memory of a process.
 * That steps leave nothing behind is tested by {@code LongTrainingTest}.
 */
public class RecomputeMemoryTest {

    private static final int LAYERS = 12;
    private static final int ROWS = 4;
    private static final int TOKENS = 128;
    private static final int WIDTH = 32;
    private static final int HIDDEN = 1024;

    /** Of each layer there are the hidden features before and after GELU, 2 MiB each. */
    @Test(timeOut = 120_000)
    public void activationsOfOneLayerLive() throws Exception {
        if (!Files.isReadable(Path.of("/proc/self/status"))) {
            throw new SkipException("the system does not say what a process needs");
        }
        long layer = 2L * ROWS * TOKENS * HIDDEN * 4 / 1024; // KiB
        long kept = most("kept");
        long recomputed = most("recomputed");
        Assert.assertTrue(kept > LAYERS * layer, kept + " KiB, of a layer " + layer);
        // of the layer that is differentiated there are gradients too, and other small things
        Assert.assertTrue(
                recomputed < kept - (LAYERS - 4) * layer,
                recomputed + " KiB instead of " + kept + ", of a layer " + layer);
    }

    private static long most(String how) throws IOException, InterruptedException {
        Path output = Files.createTempFile("deep-stack", ".txt");
        ProcessBuilder builder =
                new ProcessBuilder(
                                Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                                "-Xms64m",
                                "-Xmx64m",
                                "-XX:+AlwaysPreTouch",
                                "-XX:+UseSerialGC",
                                "-XX:-UsePerfData",
                                System.getProperty("djltp.test.archive.option", "-Xshare:auto"),
                                "-XX:TieredStopAtLevel=1",
                                "-Dai.djl.offline=true",
                                "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                                "-cp",
                                System.getProperty("java.class.path"),
                                DeepStack.class.getName())
                        .redirectErrorStream(true)
                        .redirectOutput(output.toFile());
        builder.command().addAll(List.of("2", how, "" + LAYERS, "" + ROWS, "" + TOKENS));
        builder.command().addAll(List.of("" + WIDTH, "" + HIDDEN, "0"));
        builder.environment().put("MALLOC_ARENA_MAX", "1");
        builder.environment().put("MALLOC_MMAP_THRESHOLD_", "65536"); // what is freed is gone
        Process process = builder.start();
        try {
            boolean over = process.waitFor(100, TimeUnit.SECONDS);
            String text = Files.readString(output);
            Assert.assertTrue(over, text);
            Matcher matcher = Pattern.compile("kib=(\\d+)").matcher(text);
            Assert.assertTrue(matcher.find(), text);
            return Long.parseLong(matcher.group(1));
        } finally {
            process.destroyForcibly();
            Files.delete(output);
        }
    }
}
