package io.djltp.collective.mpi;

import io.djltp.launch.MeshProcess;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

/** A mesh of processes: both axes compute by turns, and all ranks are told who has failed. */
public class MpiMeshTest {

    @BeforeClass
    public void setUp() {
        MpiRun.skipWithoutMpi();
    }

    @Test(timeOut = 90_000)
    public void axesComputeAndFailTogether() throws Exception {
        MpiRun.Result result = new MpiRun(4).run(MeshProcess.class, "mpi", "2", "2");
        // MPI is left as it is after a failure, and mpirun says so
        Assert.assertNotEquals(result.exitCode(), 0, result.output());
        Assert.assertNotEquals(result.exitCode(), -1, result.output());
        for (int rank = 0; rank < 4; rank++) {
            Assert.assertEquals(result.report(rank, "computed"), "all");
            String failure = result.report(rank, "failure");
            Assert.assertTrue(failure.endsWith("it has lost its data"), failure);
            Assert.assertTrue(rank == 3 || failure.contains("rank 3 (process 3"), failure);
        }
    }
}
