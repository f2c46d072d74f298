package io.djltp.collective.mpi;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

/** What ranks of other processes are told when something goes wrong; nothing may hang. */
public class MpiFailuresTest {

    @BeforeClass
    public void setUp() {
        MpiRun.skipWithoutMpi();
    }

    @Test(timeOut = 90_000)
    public void ranksAreToldWhatWentWrong() throws Exception {
        MpiRun.Result result = new MpiRun(3).run(MpiFailures.class, "errors");
        // a process that leaves MPI as it is has not ended well
        Assert.assertNotEquals(result.exitCode(), 0, result.output());
        Assert.assertNotEquals(result.exitCode(), -1, result.output());
        for (int rank = 0; rank < 3; rank++) {
            String prefix = "rank " + rank + " of 3: ";
            String disagreement =
                    prefix
                            + "the ranks called different operations:"
                            + " rank 0 all-reduce #1 (SUM) of (8) float32;"
                            + " rank 1 broadcast #1 from rank 0 of (8) float32;"
                            + " rank 2 barrier #1. Do all ranks have as many batches, of the same"
                            + " size, as many epochs, and the same settings?";
            Assert.assertEquals(result.report(rank, "disagreement"), disagreement);
            Assert.assertEquals(result.report(rank, "afterwards"), disagreement);
            Assert.assertEquals(
                    result.report(rank, "counts"),
                    prefix + "rank 1 sends 7 elements to rank 2, which expects 2");
            if (rank < 2) {
                Assert.assertEquals(
                        result.report(rank, "abort"),
                        prefix
                                + "the group was aborted: java.lang.IllegalStateException:"
                                + " no more data");
            }
            assertSoon(result.report(rank, "abort time"), 0.5);
            Assert.assertTrue(
                    result.report(rank, "again").startsWith("MPI was ended in this process"),
                    result.output());
        }
        String late =
                "rank 0 of 3: time-out after 1000 ms: rank 0 of 3 waits in all-reduce #1 (SUM) of"
                        + " (3) float32 in part 0 of split #1 issued by the test";
        Assert.assertEquals(result.report(0, "late"), late);
        Assert.assertEquals(result.report(0, "late group"), late);
        assertSoon(result.report(0, "late time"), 1);
        Assert.assertTrue(result.output().contains("MPI is left as it is"), result.output());
    }

    private static void assertSoon(String time, double atLeast) {
        double seconds = Double.parseDouble(time);
        Assert.assertTrue(seconds >= atLeast && seconds < atLeast + 8, time); // a busy machine
    }

    @Test(timeOut = 90_000)
    public void creationWaitsNotForEver() throws Exception {
        MpiRun.Result result = new MpiRun(2).run(MpiFailures.class, "create");
        Assert.assertNotEquals(result.exitCode(), 0, result.output());
        Assert.assertEquals(
                result.report(0, "create"),
                "time-out after 1000 ms: rank 0 of 2 waits in the creation of a communicator");
        Assert.assertEquals(
                result.report(0, "message"),
                "MPI is of no use in this process any more, because a process did not come: end"
                        + " all processes and start them again.");
    }

    @Test(timeOut = 90_000)
    public void killedProcessEndsTheJob() throws Exception {
        MpiRun.Result result = new MpiRun(2).run(MpiFailures.class, "kill", "PT50S");
        Assert.assertEquals(result.exitCode(), 128 + 9, result.output());
    }

    @Test(timeOut = 90_000)
    public void survivorsOfAKilledProcessGiveUp() throws Exception {
        MpiRun.Result result =
                new MpiRun(3).launch("--enable-recovery").run(MpiFailures.class, "kill", "PT2S");
        // with this option, mpirun says that all is well
        Assert.assertNotEquals(result.exitCode(), -1, result.output());
        for (int rank = 0; rank < 2; rank++) {
            Assert.assertEquals(
                    result.report(rank, "kill"),
                    "rank %d of 3: time-out after 2000 ms: rank %d of 3 waits in all-reduce #2"
                                    .formatted(rank, rank)
                            + " (SUM) of (100000) float32");
        }
    }
}
