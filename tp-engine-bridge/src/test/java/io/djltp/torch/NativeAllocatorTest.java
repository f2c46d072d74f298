package io.djltp.torch;

import io.djltp.collective.ForkedJvm;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/** The allocator of the process is the program's own affair, until it asks for something else. */
public class NativeAllocatorTest {

    /** What 2 threads use that take 3 pieces of 48 MiB 8 times. */
    private static final int ALL = 2 * 8 * 3 * 48;

    @BeforeClass
    public void check() throws IOException {
        if (!System.getProperty("os.name").equals("Linux")
                || NativeAllocator.isDecided(System.getenv())) {
            throw new SkipException("the allocator is not ours to set here");
        }
        Path huge = Path.of("/sys/kernel/mm/transparent_hugepage/enabled");
        if (Files.exists(huge) && Files.readString(huge).contains("[always]")) {
            throw new SkipException("pages of several sizes cannot be counted here");
        }
    }

    @Test(timeOut = 90_000)
    public void loadingTheLibraryChangesNothing() throws Exception {
        String output = probe("default");
        Assert.assertTrue(number(output, "left") < 16, "what was freed is given back: " + output);
        Assert.assertTrue(number(output, "fresh") >= ALL, "each time: " + output);
    }

    @Test(timeOut = 90_000)
    public void freedArraysAreKeptWhenAskedFor() throws Exception {
        String output = probe("kept");
        Assert.assertTrue(number(output, "left") > 32, "what was freed is kept: " + output);
        // one piece for each thread that finds its place late; without the room at the end of
        // an arena it is more than a third of them
        Assert.assertTrue(number(output, "fresh") < ALL / 8, "in all arenas: " + output);
    }

    @Test
    public void whatTheUserHasDecidedStays() {
        Assert.assertFalse(NativeAllocator.isDecided(Map.of("PATH", "/bin")));
        Assert.assertTrue(NativeAllocator.isDecided(Map.of("MALLOC_ARENA_MAX", "2")));
        Assert.assertTrue(NativeAllocator.isDecided(Map.of("LD_PRELOAD", "libjemalloc.so")));
        Assert.assertTrue(
                NativeAllocator.isDecided(Map.of("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")));
    }

    private static String probe(String way) throws Exception {
        return new ForkedJvm().succeed(AllocatorProbe.class, way);
    }

    private static int number(String output, String name) {
        return Integer.parseInt(output.replaceAll("(?s).*" + name + "=(-?\\d+).*", "$1"));
    }
}
