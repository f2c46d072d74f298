package io.djltp.collective;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.collective.AbstractCommunicator;
import io.djltp.internal.collective.GroupFailure;
import io.djltp.internal.collective.local.LocalCommunicator;
import io.djltp.internal.collective.nccl.NcclDouble;
import io.djltp.internal.torch.TensorView;
import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;

/**
 * When a rank fails or does not come, the others get its failure, and the group is over. Ranks that
 * are connected by sockets hear of each other's failures by their job: see the tests of jobs.
 */
public class GroupAbortTest {

    private static final Duration LONG = Duration.ofMinutes(10);

    private final List<Communicator> open = new ArrayList<>();

    @DataProvider
    public static Object[][] backends() {
        return new Object[][] {{TestBackend.LOCAL}, {TestBackend.NCCL}};
    }

    private List<Communicator> create(TestBackend backend, int size, Duration timeout) {
        List<Communicator> group = backend.create(size, timeout);
        open.addAll(group);
        return group;
    }

    /** Returns a time-out in which a group can be formed, which threads are at once. */
    private static Duration brief(TestBackend backend) {
        return Duration.ofMillis(backend == TestBackend.NCCL ? 1500 : 300);
    }

    @AfterMethod
    public void nothingIsLeft(Object[] row) throws InterruptedException {
        boolean created = !open.isEmpty(); // else the double could not be built
        open.forEach(Communicator::close);
        open.clear();
        if (created && row[0] == TestBackend.NCCL) {
            Assert.assertEquals(NcclDouble.settled(), Collections.nCopies(5, 0L));
        }
    }

    @Test(dataProvider = "backends", timeOut = 60_000)
    public void theCauseReachesTheRanksThatWait(TestBackend backend) throws Exception {
        List<Communicator> group = create(backend, 4, LONG);
        IllegalStateException cause = new IllegalStateException("rank 2 has lost its data");
        long start = System.nanoTime();
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (communicator, manager) -> {
                            NDArray array = manager.ones(new Shape(1000));
                            communicator.allReduce(array, ReduceOp.SUM);
                            if (communicator.getRank() == 2) {
                                Thread.sleep(100); // the others wait by now
                                communicator.abort(cause);
                                throw cause;
                            }
                            communicator.allReduce(array, ReduceOp.SUM);
                        });
        double seconds = (System.nanoTime() - start) / 1e9;
        Assert.assertTrue(seconds < 10, "it took " + seconds + " s");
        Assert.assertSame(outcomes[2], cause);
        for (int rank : new int[] {0, 1, 3}) {
            assertFailure(outcomes[rank], rank, cause);
        }
    }

    @Test(dataProvider = "backends", timeOut = 60_000)
    public void callsAfterAFailureFailAtOnceWithTheSameFailure(TestBackend backend)
            throws Exception {
        List<Communicator> group = create(backend, 3, LONG);
        IllegalStateException cause = new IllegalStateException("first");
        group.get(1).abort(cause);
        group.get(2).abort(new IllegalStateException("second")); // too late to count
        RankThreads.runAll(
                group,
                (communicator, manager) -> {
                    NDArray array = manager.ones(new Shape(10));
                    Assert.ThrowingRunnable[] calls = {
                        () -> communicator.allReduce(array, ReduceOp.SUM), communicator::barrier
                    };
                    for (int i = 0; i < 6; i++) {
                        Throwable failure =
                                Assert.expectThrows(CollectiveException.class, calls[i % 2]);
                        assertFailure(failure, communicator.getRank(), cause);
                    }
                    // what failed was no operation
                    Assert.assertEquals(communicator.getCounts().total(), 0);
                });
    }

    @Test(dataProvider = "backends", timeOut = 60_000)
    public void anInterruptedRankEndsTheGroup(TestBackend backend) throws Exception {
        CollectiveException[] failures =
                RankThreads.failures(
                        create(backend, 2, LONG),
                        (communicator, manager) -> {
                            if (communicator.getRank() == 0) {
                                Thread.currentThread().interrupt();
                                try {
                                    communicator.barrier();
                                } finally {
                                    Assert.assertTrue(Thread.interrupted(), "the flag is kept");
                                }
                            } else {
                                Thread.sleep(100); // rank 0 has to wait
                                communicator.barrier();
                            }
                        });
        for (int rank = 0; rank < 2; rank++) {
            Assert.assertEquals(
                    failures[rank].getMessage(),
                    "rank " + rank + " of 2: rank 0 was interrupted in barrier #1");
            Assert.assertTrue(failures[rank].getCause() instanceof InterruptedException);
        }
    }

    /** A rank that fails frees its memory: no other may be reading it any more. */
    @Test(timeOut = 90_000)
    public void aFailureWaitsUntilNobodyReadsTheTensors() throws Exception {
        String output = new ForkedJvm().succeed(AbortRaces.class, "500");
        Assert.assertTrue(output.endsWith("done\n"), output);
    }

    private static void assertFailure(Throwable failure, int rank, Throwable cause) {
        Assert.assertTrue(failure instanceof CollectiveException, "" + failure);
        String message = failure.getMessage();
        Refusals.assertContains(message, "rank " + rank, cause.getMessage());
        Assert.assertSame(failure.getCause(), cause);
    }

    /** One that cannot be woken keeps no other asleep, and its error is not that of the group. */
    @Test(timeOut = 60_000)
    public void aListenerThatFailsKeepsNoOtherAsleep() {
        GroupFailure failure = new GroupFailure();
        List<String> woken = new ArrayList<>();
        failure.onSet(() -> woken.add("first"));
        failure.onSet(
                () -> {
                    throw new IllegalStateException("a selector that is closed");
                });
        failure.onSet(() -> woken.add("last"));
        CollectiveException cause = new CollectiveException("boom");
        failure.set(cause);
        Assert.assertEquals(woken, List.of("first", "last"));
        Assert.assertSame(failure.get(), cause);
    }

    /** The others wait for a rank that failed in an operation until it has left it. */
    @Test(timeOut = 60_000)
    public void aRankWhoseFailureCannotBeToldLeavesTheOperation() throws Exception {
        List<Communicator> group = LocalCommunicator.create(2, LONG);
        AbstractCommunicator.of(group.get(0))
                .getFailure()
                .onSet(
                        () -> {
                            throw new StackOverflowError();
                        });
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (communicator, manager) -> {
                            // of rank 1 there comes 1 element, and rank 0 expects 2
                            boolean first = communicator.getRank() == 0;
                            NDArray in = manager.ones(new Shape(4));
                            NDArray out = manager.ones(new Shape(first ? 4 : 5));
                            long[] sent = {first ? 2 : 1, first ? 2 : 3};
                            long[] expected = {2, first ? 2 : 3};
                            communicator
                                    .allToAll(TensorView.of(in), TensorView.of(out), sent, expected)
                                    .await();
                        });
        Assert.assertNotNull(outcomes[0]);
        Assert.assertTrue(outcomes[1] instanceof CollectiveException, "" + outcomes[1]);
    }

    @Test(dataProvider = "backends", timeOut = 60_000)
    public void theMissingRanksAreNamed(TestBackend backend) throws Exception {
        long start = System.nanoTime();
        Throwable[] outcomes =
                RankThreads.outcomes(
                        create(backend, 4, brief(backend)),
                        (communicator, manager) -> {
                            if (communicator.getRank() < 2) { // the others never call anything
                                communicator.allReduce(manager.ones(new Shape(6)), ReduceOp.SUM);
                            }
                        });
        double seconds = (System.nanoTime() - start) / 1e9;
        Assert.assertTrue(seconds >= 0.3 && seconds < 20, "it took " + seconds + " s");
        String nothing = " \\(has not called anything yet\\)";
        String text =
                (" of 4: time-out after %s ms: rank [01] waits in all-reduce #1 \\(SUM\\) of"
                                + " \\(6\\) float32 for rank 2%s, rank 3%s")
                        .formatted(brief(backend).toMillis(), nothing, nothing);
        for (int rank = 0; rank < 2; rank++) {
            Assert.assertTrue(outcomes[rank] instanceof CollectiveException, "" + outcomes[rank]);
            String message = outcomes[rank].getMessage();
            Assert.assertTrue(message.matches("rank " + rank + text), message);
            Assert.assertNull(outcomes[2 + rank]);
        }
    }

    @Test(dataProvider = "backends", timeOut = 60_000)
    public void whatTheMissingRankCalledLastIsSaid(TestBackend backend) throws Exception {
        Throwable[] outcomes =
                RankThreads.outcomes(
                        create(backend, 2, brief(backend)),
                        (communicator, manager) -> {
                            communicator.allReduce(manager.ones(new Shape(2, 3)), ReduceOp.MAX);
                            if (communicator.getRank() == 0) {
                                communicator.barrier();
                            }
                        });
        Assert.assertEquals(
                outcomes[0].getMessage(),
                ("rank 0 of 2: time-out after %s ms: rank 0 waits in barrier #2 for rank 1 (last in"
                                + " all-reduce #1 (MAX) of (2, 3) float32)")
                        .formatted(brief(backend).toMillis()));
        Assert.assertNull(outcomes[1]);
    }

    /** The rank that comes after all finds out why nobody waits for it. */
    @Test(dataProvider = "backends", timeOut = 60_000)
    public void theRankThatComesTooLateGetsTheSameError(TestBackend backend) throws Exception {
        CountDownLatch given = new CountDownLatch(1);
        CollectiveException[] failures =
                RankThreads.failures(
                        create(backend, 2, brief(backend)),
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
                "time-out after %s ms: rank 0 waits in barrier #1 for rank 1 (has not called"
                        .formatted(brief(backend).toMillis());
        for (int rank = 0; rank < 2; rank++) {
            String message = failures[rank].getMessage();
            Assert.assertTrue(message.startsWith("rank " + rank + " of 2: " + tail), message);
        }
    }

    /** The time-out is for one wait: many operations may take longer. */
    @Test(dataProvider = "backends", timeOut = 60_000)
    public void slowRanksThatComeInTimeAreWaitedFor(TestBackend backend) throws Exception {
        RankThreads.runAll(
                create(backend, 2, Duration.ofMillis(1500)),
                (communicator, manager) -> {
                    for (int i = 0; i < 20; i++) {
                        if (i % 2 == communicator.getRank()) {
                            Thread.sleep(100);
                        }
                        communicator.barrier();
                    }
                });
    }
}
