package io.djltp.collective;

import org.testng.Assert;
import org.testng.annotations.Test;

/** Many operations in a row: right results, no rank that hangs, no memory that stays. */
public class MixedOperationsTest {

    @Test(groups = "sweep", timeOut = 90_000)
    public void manyOperationsTakeNoMemory() throws Exception {
        // a heap that is in memory from the start: what grows is native
        ForkedJvm.Result result =
                new ForkedJvm()
                        .option("-Xms128m")
                        .option("-Xmx128m")
                        .option("-XX:+AlwaysPreTouch")
                        .run(MixedOperations.class, "20000");
        Assert.assertEquals(result.exitCode(), 0, result.output());
        // 5 to 11 MiB are seen: compiled code; 18,000 operations on 4 ranks that lose 350 bytes
        // each are 24
        ProcessMemory.assertFlat(result.output(), 24);
    }
}
