package io.djltp.internal.collective.nccl;

import io.djltp.collective.ForkedJvm;
import io.djltp.collective.ProcessMemory;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Operations leave no memory and no events behind. */
public class NcclMemoryTest {

    @Test(groups = "sweep", timeOut = 90_000)
    public void manyOperationsTakeNoMemory() throws Exception {
        // a heap that is in memory from the start: what grows is native
        ForkedJvm.Result result =
                new ForkedJvm()
                        .option("-Xms128m")
                        .option("-Xmx128m")
                        .option("-XX:+AlwaysPreTouch")
                        .environment("MALLOC_ARENA_MAX", "2")
                        .run(NcclMemory.class, NcclDouble.build().toString(), "1000");
        Assert.assertEquals(result.exitCode(), 0, result.output());
        Assert.assertTrue(result.output().endsWith("done\ndone\n"), result.output());
        Assert.assertTrue(number(result.output(), "operations=") >= 10_000, result.output());
        ProcessMemory.assertFlat(result.output(), 4);
        Assert.assertTrue(
                number(result.output(), "events late=")
                        <= number(result.output(), "events early=") + 2,
                result.output());
    }

    private static long number(String output, String before) {
        Matcher matcher = Pattern.compile(before + "(\\d+)").matcher(output);
        Assert.assertTrue(matcher.find(), output);
        return Long.parseLong(matcher.group(1));
    }
}
