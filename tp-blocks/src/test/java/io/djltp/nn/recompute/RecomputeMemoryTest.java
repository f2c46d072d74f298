package io.djltp.nn.recompute;

import io.djltp.collective.ForkedJvm;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
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
        String sizes = "2 %s %d %d %d %d %d 0".formatted(how, LAYERS, ROWS, TOKENS, WIDTH, HIDDEN);
        String text =
                ForkedJvm.withFixedHeap(64)
                        .environment("MALLOC_ARENA_MAX", "1")
                        .environment("MALLOC_MMAP_THRESHOLD_", "65536") // what is freed is gone
                        .succeed(DeepStack.class, sizes.split(" "));
        Matcher matcher = Pattern.compile("kib=(\\d+)").matcher(text);
        Assert.assertTrue(matcher.find(), text);
        return Long.parseLong(matcher.group(1));
    }
}
