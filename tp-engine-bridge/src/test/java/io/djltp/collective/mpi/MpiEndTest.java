package io.djltp.collective.mpi;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

/** Processes that end while process 0 still works. */
public class MpiEndTest {

    @BeforeClass
    public void setUp() {
        MpiRun.skipWithoutMpi();
    }

    /** They do not wait for it, and it is not stopped because they have gone. */
    @Test(timeOut = 90_000)
    public void processZeroMayWorkOnWhenTheOthersEnd() throws Exception {
        MpiRun.Result result = new MpiRun(3).run(MpiEnds.class, "work", "4");
        Assert.assertEquals(result.exitCode(), 0, result.output());
        Assert.assertEquals(result.report(0, "others"), "ended", result.output());
        Assert.assertEquals(result.report(0, "work"), "done", result.output());
        Assert.assertFalse(result.output().contains("MPI has not ended"), result.output());
    }

    /** Where MPI waits for all of them, the wait ends, and says so. */
    @Test(timeOut = 90_000)
    public void theWaitForAProcessThatDoesNotEndIsBounded() throws Exception {
        MpiRun.Result result =
                new MpiRun(2)
                        .launch("-x", "OMPI_MCA_async_mpi_finalize=0")
                        .run(MpiEnds.class, "hang", "6");
        Assert.assertNotEquals(result.exitCode(), -1, result.output());
        Assert.assertEquals(result.report(1, "end"), "false", result.output());
        double seconds = Double.parseDouble(result.report(1, "end time"));
        Assert.assertTrue(seconds >= 1 && seconds < 4, result.output());
        Assert.assertTrue(
                result.output()
                        .contains(
                                "MPI has not ended within 1 s, because other processes have not"
                                        + " come to their end: process 1 goes without it"),
                result.output());
    }
}
