package io.djltp.collective;

import io.djltp.internal.collective.nccl.NcclDouble;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/**
 * Many operations in a row: right results, no rank that hangs, no memory and no events that stay.
 */
public class ManyOperationsTest {

    /** Returns the backend, the ranks, the rounds, and the MiB that may be added. */
    @DataProvider
    public Object[][] backends() {
        // 5 to 11 MiB are seen on threads: compiled code; operations that lose 350 bytes each are
        // 24
        return new Object[][] {{TestBackend.LOCAL, 4, 750, 24}, {TestBackend.NCCL, 2, 1000, 4}};
    }

    @Test(dataProvider = "backends", groups = "sweep", timeOut = 90_000)
    public void manyOperationsTakeNoMemory(
            TestBackend backend, int ranks, int rounds, int mebibytes) throws Exception {
        String folder = backend == TestBackend.NCCL ? NcclDouble.build().toString() : "";
        // a heap that is in memory from the start: what grows is native
        String output =
                ForkedJvm.withFixedHeap(128)
                        .environment("MALLOC_ARENA_MAX", "2")
                        .succeed(
                                ManyOperations.class,
                                "" + backend,
                                folder,
                                "" + ranks,
                                "" + rounds);
        Assert.assertTrue(ProcessMemory.number(output, "operations=") >= 10_000, output);
        ProcessMemory.assertFlat(output, mebibytes);
        long early = ProcessMemory.number(output, "events early=");
        Assert.assertTrue(ProcessMemory.number(output, "events late=") <= early + 2, output);
    }
}
