package io.djltp.collective;

import ai.djl.ndarray.types.Shape;

import io.djltp.internal.collective.local.LocalCommunicator;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CountDownLatch;

/** A rank that does not come ends the wait of the others, and is named. */
public class GroupTimeoutTest {

    private static final Duration SHORT = Duration.ofMillis(300);

    @Test(timeOut = 60_000)
    public void theMissingRanksAreNamed() throws Exception {
        List<Communicator> group = LocalCommunicator.create(4, SHORT);
        long start = System.nanoTime();
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (communicator, manager) -> {
                            int rank = communicator.getRank();
                            if (rank == 3) {
                                return; // never calls anything
                            }
                            if (rank < 2) {
                                communicator.allReduce(manager.ones(new Shape(6)), ReduceOp.SUM);
                            }
                        });
        double seconds = (System.nanoTime() - start) / 1e9;
        Assert.assertTrue(seconds >= 0.3 && seconds < 20, "it took " + seconds + " s");
        for (int rank = 0; rank < 2; rank++) {
            Assert.assertTrue(outcomes[rank] instanceof CollectiveException, "" + outcomes[rank]);
            String message = outcomes[rank].getMessage();
            Assert.assertTrue(
                    message.matches(
                            "rank "
                                    + rank
                                    + " of 4: time-out after 300 ms: rank [01] waits in all-reduce"
                                    + " #1 \\(SUM\\) of \\(6\\) float32 for rank 2 \\(has not"
                                    + " called anything yet\\), rank 3 \\(has not called anything"
                                    + " yet\\)"),
                    message);
        }
        Assert.assertNull(outcomes[2]);
        Assert.assertNull(outcomes[3]);
    }

    @Test(timeOut = 60_000)
    public void whatTheMissingRankCalledLastIsSaid() throws Exception {
        List<Communicator> group = LocalCommunicator.create(2, SHORT);
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (communicator, manager) -> {
                            communicator.allReduce(manager.ones(new Shape(2, 3)), ReduceOp.MAX);
                            if (communicator.getRank() == 0) {
                                communicator.barrier();
                            }
                        });
        Assert.assertEquals(
                outcomes[0].getMessage(),
                "rank 0 of 2: time-out after 300 ms: rank 0 waits in barrier #2 for rank 1 (last in"
                        + " all-reduce #1 (MAX) of (2, 3) float32)");
        Assert.assertNull(outcomes[1]);
    }

    /** The rank that comes after all finds out why nobody waits for it. */
    @Test(timeOut = 60_000)
    public void theRankThatComesTooLateGetsTheSameError() throws Exception {
        List<Communicator> group = LocalCommunicator.create(2, SHORT);
        CountDownLatch given = new CountDownLatch(1);
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (communicator, manager) -> {
                            if (communicator.getRank() == 1) {
                                given.await();
                            }
                            try {
                                communicator.barrier();
                            } finally {
                                given.countDown();
                            }
                        });
        String tail =
                "time-out after 300 ms: rank 0 waits in barrier #1 for rank 1 (has not called";
        for (int rank = 0; rank < 2; rank++) {
            Assert.assertTrue(
                    outcomes[rank].getMessage().startsWith("rank " + rank + " of 2: " + tail),
                    outcomes[rank].getMessage());
        }
    }

    /** The time-out is for one wait: many operations may take longer. */
    @Test(timeOut = 60_000)
    public void slowRanksThatComeInTimeAreWaitedFor() throws Exception {
        List<Communicator> group = LocalCommunicator.create(2, Duration.ofMillis(1500));
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (communicator, manager) -> {
                            for (int i = 0; i < 20; i++) {
                                if (i % 2 == communicator.getRank()) {
                                    Thread.sleep(100);
                                }
                                communicator.barrier();
                            }
                        });
        Assert.assertNull(outcomes[0]);
        Assert.assertNull(outcomes[1]);
    }
}
