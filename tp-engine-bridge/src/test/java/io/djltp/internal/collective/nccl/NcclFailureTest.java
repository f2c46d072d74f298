package io.djltp.internal.collective.nccl;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.collective.ReduceOp;
import io.djltp.internal.torch.TensorView;

import org.testng.Assert;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.time.Duration;
import java.util.List;

/** Whatever goes wrong, every rank gets an error that says what, and nothing stays behind. */
public class NcclFailureTest {

    private static final Duration SHORT = Duration.ofMillis(1500);
    private static final Duration LONG = Duration.ofMinutes(10);

    private List<Long> before;

    @BeforeMethod
    public void count() throws InterruptedException {
        NcclDouble.load();
        before = NcclCommunicatorTest.settled();
    }

    @Test(timeOut = 60_000)
    public void aPeerThatNeverCallsIsNamed() throws Exception {
        List<Communicator> group = NcclGroups.create(3, SHORT);
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (communicator, manager) -> {
                            if (communicator.getRank() < 2) {
                                communicator.allReduce(manager.ones(new Shape(6)), ReduceOp.SUM);
                            }
                        });
        for (int rank = 0; rank < 2; rank++) {
            String message = message(outcomes[rank]);
            Assert.assertTrue(
                    message.matches(
                            "rank "
                                    + rank
                                    + " of 3: time-out after 1500 ms: rank [01] waits in all-reduce"
                                    + " #1 \\(SUM\\) of \\(6\\) float32 for rank 2 \\(has not"
                                    + " called anything yet\\)"),
                    message);
        }
        Assert.assertNull(outcomes[2]);
        assertOver(group);
    }

    /** The time-out is for one wait: many operations may take longer. */
    @Test(timeOut = 60_000)
    public void slowRanksThatComeInTimeAreWaitedFor() throws Exception {
        List<Communicator> group = NcclGroups.create(2, Duration.ofMillis(1500));
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (communicator, manager) -> {
                            for (int i = 0; i < 25; i++) {
                                if (i % 2 == communicator.getRank()) {
                                    Thread.sleep(100);
                                }
                                communicator.barrier();
                            }
                        });
        Assert.assertNull(outcomes[0]);
        Assert.assertNull(outcomes[1]);
        assertOver(group);
    }

    @Test(timeOut = 60_000)
    public void aSplitThatOneRankDoesNotCallTimesOut() throws Exception {
        List<Communicator> group = NcclGroups.create(2, SHORT);
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (communicator, manager) -> {
                            if (communicator.getRank() == 0) {
                                communicator.split(0, 0);
                            }
                        });
        Assert.assertTrue(
                message(outcomes[0]).contains("rank 0 waits in split #1 for rank 1"),
                message(outcomes[0]));
        assertOver(group);
    }

    /** Returns what all ranks but the last call, and what that calls. */
    @DataProvider
    public static Object[][] disagreements() {
        RankThreads.Body sum = (c, m) -> reduce(c, m, 12, DataType.FLOAT32, ReduceOp.SUM);
        return new Object[][] {
            {sum, (RankThreads.Body) (c, m) -> reduce(c, m, 11, DataType.FLOAT32, ReduceOp.SUM)},
            {sum, (RankThreads.Body) (c, m) -> reduce(c, m, 12, DataType.INT32, ReduceOp.SUM)},
            {sum, (RankThreads.Body) (c, m) -> reduce(c, m, 12, DataType.FLOAT32, ReduceOp.MAX)},
            {sum, (RankThreads.Body) (c, m) -> c.barrier()},
            {(RankThreads.Body) (c, m) -> send(c, m, 4), (RankThreads.Body) (c, m) -> send(c, m, 5)}
        };
    }

    @Test(dataProvider = "disagreements", timeOut = 60_000)
    public void whatNcclFindsReachesEveryRank(RankThreads.Body most, RankThreads.Body last)
            throws Exception {
        List<Communicator> group = NcclGroups.create(3, LONG);
        Throwable[] outcomes =
                RankThreads.outcomes(group, (c, m) -> (c.getRank() == 2 ? last : most).run(c, m));
        for (int rank = 0; rank < 3; rank++) {
            String message = message(outcomes[rank]);
            Assert.assertTrue(
                    message.contains("the ranks called different operations: rank 0 all-reduce #1")
                            || message.contains("sends 4 elements to rank 2, which expects 5")
                            || message.contains("sends 5 elements to rank 0, which expects 4"),
                    message);
            String seen = outcomes[rank].getCause().getMessage();
            Assert.assertTrue(seen.contains("NCCL error 5 (invalid usage"), seen);
        }
        assertOver(group);
    }

    @Test(timeOut = 60_000)
    public void anErrorOfTheNetworkEndsTheGroup() throws Exception {
        List<Communicator> group = NcclGroups.create(4, LONG);
        NcclDouble.injectError(2, 5, 6);
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (c, m) -> {
                            for (int i = 0; i < 20; i++) {
                                reduce(c, m, 9, DataType.FLOAT32, ReduceOp.SUM);
                            }
                        });
        for (int rank = 0; rank < 4; rank++) {
            Assert.assertEquals(
                    message(outcomes[rank]),
                    "rank "
                            + rank
                            + " of 4: rank 2 failed in all-reduce #6 (SUM) of (9) float32: NCCL"
                            + " error 6 (remote process exited or there was a network error):"
                            + " NET/IB : injected error");
        }
        assertOver(group);
    }

    @Test(timeOut = 60_000)
    public void anAbortReachesTheRanksThatWait() throws Exception {
        List<Communicator> group = NcclGroups.create(3, LONG);
        IllegalStateException cause = new IllegalStateException("rank 2 has lost its data");
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (c, m) -> {
                            reduce(c, m, 9, DataType.FLOAT32, ReduceOp.SUM);
                            if (c.getRank() == 2) {
                                Thread.sleep(100); // the others wait by now
                                c.abort(cause);
                                c.abort(new IllegalStateException("too late to count"));
                            }
                            for (int i = 0; i < 3; i++) {
                                int rank = c.getRank();
                                CollectiveException failure =
                                        Assert.expectThrows(
                                                CollectiveException.class,
                                                () -> {
                                                    reduce(c, m, 9, DataType.INT64, ReduceOp.MAX);
                                                });
                                Assert.assertEquals(
                                        failure.getMessage(),
                                        "rank " + rank + " of 3: the group was aborted: " + cause);
                                Assert.assertSame(failure.getCause(), cause);
                            }
                        });
        for (Throwable outcome : outcomes) {
            Assert.assertNull(outcome);
        }
        assertOver(group);
    }

    /** At any moment, under any call. */
    @Test(timeOut = 60_000)
    public void anAbortFromOutsideEndsRunningRanks() throws Exception {
        for (int i = 0; i < 30; i++) {
            List<Communicator> group = NcclGroups.create(3, LONG);
            IllegalStateException cause = new IllegalStateException("enough");
            Thread aborter =
                    new Thread(
                            () -> {
                                try {
                                    Thread.sleep(20);
                                } catch (InterruptedException e) {
                                    Thread.currentThread().interrupt();
                                }
                                group.get(1).abort(cause);
                            });
            aborter.start();
            Throwable[] outcomes =
                    RankThreads.outcomes(
                            group,
                            (c, m) -> {
                                while (true) {
                                    EveryOperation.run(c, DataType.FLOAT32, 100);
                                    c.split(c.getRank() % 2, 0).close();
                                }
                            });
            aborter.join();
            for (Throwable outcome : outcomes) {
                Assert.assertSame(outcome.getCause(), cause, "" + outcome);
            }
            assertOver(group);
        }
    }

    @Test(timeOut = 60_000)
    public void anInterruptedRankEndsTheGroup() throws Exception {
        List<Communicator> group = NcclGroups.create(2, LONG);
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (c, m) -> {
                            if (c.getRank() == 0) {
                                Thread.currentThread().interrupt();
                                try {
                                    c.barrier();
                                } finally {
                                    Assert.assertTrue(Thread.interrupted(), "the flag is kept");
                                }
                            } else {
                                Thread.sleep(100); // rank 0 has to wait
                                c.barrier();
                            }
                        });
        for (int rank = 0; rank < 2; rank++) {
            Assert.assertEquals(
                    message(outcomes[rank]),
                    "rank " + rank + " of 2: rank 0 was interrupted in barrier #1");
            Assert.assertTrue(outcomes[rank].getCause() instanceof InterruptedException);
        }
        assertOver(group);
    }

    @Test(timeOut = 60_000)
    public void aRankThatIsClosedTooEarlyIsSaidToBe() throws Exception {
        List<Communicator> group = NcclGroups.create(2, SHORT);
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (c, m) -> {
                            if (c.getRank() == 0) {
                                NDArray array = m.ones(new Shape(3));
                                c.allReduce(TensorView.of(array), ReduceOp.SUM);
                                c.close();
                                c.barrier();
                            }
                        });
        Assert.assertTrue(message(outcomes[0]).contains("all-reduce #1"), message(outcomes[0]));
        assertOver(group);
    }

    private static void reduce(
            Communicator group, NDManager manager, int length, DataType type, ReduceOp op) {
        try (NDArray array = manager.ones(new Shape(length), type)) {
            group.allReduce(array, op);
        }
    }

    private static void send(Communicator group, NDManager manager, long count) {
        long[] counts = {count, count, count};
        NDArray input = manager.ones(new Shape(3 * count));
        NDArray output = manager.ones(new Shape(3 * count));
        group.allToAll(TensorView.of(input), TensorView.of(output), counts, counts).await();
    }

    private static String message(Throwable outcome) {
        Assert.assertTrue(outcome instanceof CollectiveException, "" + outcome);
        return outcome.getMessage();
    }

    /** Closes what is left of a group; the failure holds for all that comes later. */
    private void assertOver(List<Communicator> group) throws InterruptedException {
        group.forEach(Communicator::close);
        Assert.assertEquals(NcclCommunicatorTest.settled(), before);
    }
}
