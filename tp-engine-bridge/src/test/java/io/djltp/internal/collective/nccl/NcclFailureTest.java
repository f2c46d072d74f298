package io.djltp.internal.collective.nccl;

import static io.djltp.collective.ReduceOp.SUM;
import static io.djltp.internal.collective.nccl.NcclEndpoint.PATIENCE;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.Communicator;
import io.djltp.collective.EveryOperation;
import io.djltp.collective.RankThreads;
import io.djltp.collective.ReduceOp;
import io.djltp.collective.Work;
import io.djltp.internal.torch.TensorView;

import org.testng.Assert;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import java.util.regex.Pattern;

/** Whatever goes wrong, every rank gets an error that says what, and nothing stays behind. */
public class NcclFailureTest {

    private static final Duration SHORT = Duration.ofMillis(1500);
    private static final Duration LONG = Duration.ofMinutes(10);
    private static final DataType FLOATS = DataType.FLOAT32;

    private List<Long> before;
    private List<Communicator> group;

    @BeforeMethod
    public void count() throws InterruptedException {
        NcclDouble.load();
        before = NcclDouble.settled();
    }

    /** Closes what is left of a group; the failure holds for all that comes later. */
    private void assertOver() throws InterruptedException {
        group.forEach(Communicator::close);
        Assert.assertEquals(NcclDouble.settled(), before);
    }

    /** Runs all ranks of a new group to their ends, and returns what they threw. */
    private Throwable[] outcomes(int size, RankThreads.Body body) throws Exception {
        group = NcclGroups.create(size, SHORT);
        Throwable[] outcomes = RankThreads.outcomes(group, body);
        assertOver();
        return outcomes;
    }

    private CollectiveException[] failures(int size, RankThreads.Body body) throws Exception {
        group = NcclGroups.create(size, LONG);
        CollectiveException[] failures = RankThreads.failures(group, body);
        assertOver();
        return failures;
    }

    private static String message(Throwable outcome) {
        Assert.assertTrue(outcome instanceof CollectiveException, "" + outcome);
        return outcome.getMessage();
    }

    @Test(timeOut = 60_000)
    public void aSplitThatOneRankDoesNotCallTimesOut() throws Exception {
        Throwable[] outcomes =
                outcomes(
                        2,
                        (communicator, manager) -> {
                            if (communicator.getRank() == 0) {
                                communicator.split(0, 0);
                            }
                        });
        String message = message(outcomes[0]);
        Assert.assertTrue(message.contains("rank 0 waits in split #1 for rank 1"), message);
    }

    private static Object[] row(RankThreads.Body most, RankThreads.Body last) {
        return new Object[] {most, last};
    }

    /** Returns what all ranks but the last call, and what that calls. */
    @DataProvider
    public static Object[][] disagreements() {
        RankThreads.Body sum = (c, m) -> reduce(c, m, 12, FLOATS, SUM);
        return new Object[][] {
            row(sum, (c, m) -> reduce(c, m, 11, FLOATS, SUM)),
            row(sum, (c, m) -> reduce(c, m, 12, DataType.INT32, SUM)),
            row(sum, (c, m) -> reduce(c, m, 12, FLOATS, ReduceOp.MAX)),
            row(sum, (c, m) -> c.barrier()),
            row((c, m) -> send(c, m, 4), (c, m) -> send(c, m, 5))
        };
    }

    @Test(dataProvider = "disagreements", timeOut = 60_000)
    public void whatNcclFindsReachesEveryRank(RankThreads.Body most, RankThreads.Body last)
            throws Exception {
        for (CollectiveException failure :
                failures(3, (c, m) -> (c.getRank() == 2 ? last : most).run(c, m))) {
            String message = failure.getMessage();
            Assert.assertTrue(
                    message.contains("the ranks called different operations: rank 0 all-reduce #1")
                            || message.contains("sends 4 elements to rank 2, which expects 5")
                            || message.contains("sends 5 elements to rank 0, which expects 4"),
                    message);
            String seen = failure.getCause().getMessage();
            Assert.assertTrue(seen.contains("NCCL error 5 (invalid usage"), seen);
        }
    }

    @Test(timeOut = 60_000)
    public void anErrorOfTheNetworkEndsTheGroup() throws Exception {
        NcclDouble.injectError(2, 5, 6);
        CollectiveException[] failures =
                failures(
                        4,
                        (c, m) -> {
                            for (int i = 0; i < 20; i++) {
                                reduce(c, m, 9, FLOATS, SUM);
                            }
                        });
        for (int rank = 0; rank < 4; rank++) {
            Assert.assertEquals(
                    failures[rank].getMessage(),
                    ("rank %s of 4: rank 2 failed in all-reduce #6 (SUM) of (9) float32: NCCL error"
                                    + " 6 (remote process exited or there was a network error):"
                                    + " NET/IB : injected error")
                            .formatted(rank));
        }
    }

    /** At any moment, under any call. */
    @Test(timeOut = 60_000)
    public void anAbortFromOutsideEndsRunningRanks() throws Exception {
        IllegalStateException cause = new IllegalStateException("enough");
        for (int i = 0; i < 30; i++) {
            List<Communicator> running = NcclGroups.create(3, LONG);
            Thread aborter =
                    new Thread(
                            () -> {
                                LockSupport.parkNanos(20_000_000);
                                running.get(1).abort(cause);
                            });
            aborter.start();
            CollectiveException[] failures =
                    RankThreads.failures(
                            running,
                            (c, m) -> {
                                while (true) {
                                    EveryOperation.run(c, FLOATS, 100);
                                    c.split(c.getRank() % 2, 0).close();
                                }
                            });
            aborter.join();
            for (CollectiveException failure : failures) {
                Assert.assertSame(failure.getCause(), cause, "" + failure);
            }
            group = running;
            assertOver();
        }
    }

    /** Returns how the group ends whose other ranks load kernels, and what they are told. */
    @DataProvider
    public static Object[][] endings() {
        RankThreads.Body aborts = (c, m) -> c.abort(new IllegalStateException("enough"));
        return new Object[][] {
            {
                (RankThreads.Body) (c, m) -> {},
                "time-out after 1500 ms: rank [0-2] waits in all-red"
            },
            {aborts, "the group was aborted: java.lang.IllegalStateException: enough"}
        };
    }

    /**
     * A kernel is loaded when the GPU is idle, which waits for a rank that never comes: whoever
     * then asks CUDA waits, too, and the group ends all the same, in the patience for one rank.
     */
    @Test(dataProvider = "endings", timeOut = 60_000)
    public void ranksThatAreStuckInCudaAreFreed(RankThreads.Body last, String message)
            throws Exception {
        NcclCommunicator.orderOnStream(true);
        try {
            long start = System.nanoTime();
            Throwable[] outcomes =
                    outcomes(
                            4,
                            (c, m) -> {
                                if (c.getRank() == 3) {
                                    Thread.sleep(300);
                                    last.run(c, m);
                                    return;
                                }
                                Work work = c.allReduce(TensorView.of(m.ones(new Shape(3))), SUM);
                                Cuda.use(c.getRank());
                                NcclDouble.loadKernel();
                                work.await();
                            });
            for (int rank = 0; rank < 3; rank++) {
                String text = message(outcomes[rank]);
                Assert.assertTrue(Pattern.compile(message).matcher(text).find(), text);
            }
            double seconds = (System.nanoTime() - start) / 1e9;
            Assert.assertTrue(seconds < 2 * PATIENCE.toSeconds() + 2, seconds + " s");
        } finally {
            NcclCommunicator.orderOnStream(false);
        }
    }

    @Test(timeOut = 60_000)
    public void aRankThatIsClosedTooEarlyIsSaidToBe() throws Exception {
        Throwable[] outcomes =
                outcomes(
                        2,
                        (c, m) -> {
                            if (c.getRank() == 0) {
                                NDArray array = m.ones(new Shape(3));
                                c.allReduce(TensorView.of(array), SUM);
                                c.close();
                                c.barrier();
                            }
                        });
        Assert.assertTrue(message(outcomes[0]).contains("all-reduce #1"), message(outcomes[0]));
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
}
