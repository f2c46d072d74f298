package io.djltp.collective.mpi;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** All operations, in processes that are connected by Open MPI. */
public class MpiOperationsTest {

    @BeforeClass
    public void setUp() {
        MpiRun.skipWithoutMpi();
    }

    @DataProvider
    public Object[][] processes() {
        return new Object[][] {{2}, {3}};
    }

    @DataProvider
    public Object[][] otherProcesses() {
        return new Object[][] {{1}, {4}};
    }

    @Test(dataProvider = "processes", timeOut = 90_000)
    public void operationsGiveWhatJavaComputes(int processes) throws Exception {
        MpiRun.Result result = new MpiRun(processes).run(MpiOperations.class);
        Assert.assertEquals(result.exitCode(), 0, result.output());
        for (int rank = 0; rank < processes; rank++) {
            Assert.assertEquals(result.report(rank, "done"), processes + " processes");
        }
    }

    @Test(groups = "sweep", dataProvider = "otherProcesses", timeOut = 90_000)
    public void otherNumbersOfProcesses(int processes) throws Exception {
        operationsGiveWhatJavaComputes(processes);
    }

    @Test(timeOut = 90_000)
    public void processWithoutMpirunIsAWorldOfOne() throws Exception {
        MpiRun.Result result = new MpiRun(0).run(MpiOperations.class);
        Assert.assertEquals(result.exitCode(), 0, result.output());
        Assert.assertEquals(result.report(0, "done"), "1 processes");
    }
}
