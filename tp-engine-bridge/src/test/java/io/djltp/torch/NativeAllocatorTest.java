package io.djltp.torch;

import io.djltp.collective.ForkedJvm;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.util.Map;

/** The allocator of the process is the program's own affair, until it asks for something else. */
public class NativeAllocatorTest {

    @BeforeClass
    public void check() {
        if (!System.getProperty("os.name").equals("Linux")
                || NativeAllocator.isDecided(System.getenv())) {
            throw new SkipException("the allocator is not ours to set here");
        }
    }

    @Test(timeOut = 90_000)
    public void loadingTheLibraryChangesNothing() throws Exception {
        String output = probe("default");
        Assert.assertTrue(number(output, "left") < 16, "what was freed is given back: " + output);
        Assert.assertTrue(number(output, "fresh") > 400, "each time: " + output);
    }

    @Test(timeOut = 90_000)
    public void freedArraysAreKeptWhenAskedFor() throws Exception {
        String output = probe("kept");
        Assert.assertTrue(number(output, "left") > 32, "what was freed is kept: " + output);
        Assert.assertTrue(number(output, "fresh") < 64, "in all arenas: " + output);
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
        ForkedJvm.Result result = new ForkedJvm().run(AllocatorProbe.class, way);
        Assert.assertEquals(result.exitCode(), 0, result.output());
        return result.output();
    }

    private static int number(String output, String name) {
        return Integer.parseInt(output.replaceAll("(?s).*" + name + "=(-?\\d+).*", "$1"));
    }
}
