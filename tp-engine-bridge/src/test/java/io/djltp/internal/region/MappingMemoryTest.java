package io.djltp.internal.region;

import io.djltp.collective.ForkedJvm;
import io.djltp.collective.ProcessMemory;

import org.testng.annotations.Test;

/** Views, hooks and gradients of a step are gone after the step. */
public class MappingMemoryTest {

    @Test(timeOut = 240_000)
    public void manyPassesTakeNoMemory() throws Exception {
        // a heap that is in memory from the start: what grows is native
        String output = ForkedJvm.withFixedHeap(128).succeed(ManyPasses.class, "1600");
        // from pass 400 on, when the code is compiled: not 100 KiB are seen; one gradient of 4 KiB
        // that each of the 400 passes with one kind of cut loses is more than 3 MiB on 2 ranks
        ProcessMemory.assertFlat(output, 2);
    }
}
