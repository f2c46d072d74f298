package io.djltp.collective;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.collective.local.LocalCommunicator;
import io.djltp.internal.torch.TensorView;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/** When a rank fails, the others get its failure at once, and the group is over. */
public class GroupAbortTest {

    private static final Duration LONG = Duration.ofMinutes(10);

    @Test(timeOut = 60_000)
    public void theCauseReachesTheRanksThatWait() throws Exception {
        List<Communicator> group = LocalCommunicator.create(4, LONG);
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
        for (int rank = 0; rank < 4; rank++) {
            if (rank != 2) {
                assertFailure(outcomes[rank], rank, cause);
            }
        }
        Assert.assertSame(outcomes[2], cause);
    }

    @Test(timeOut = 60_000)
    public void callsAfterAFailureFailAtOnceWithTheSameFailure() throws Exception {
        List<Communicator> group = LocalCommunicator.create(3, LONG);
        IllegalStateException cause = new IllegalStateException("first");
        group.get(1).abort(cause);
        group.get(2).abort(new IllegalStateException("second")); // too late to count
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (communicator, manager) -> {
                            int rank = communicator.getRank();
                            NDArray array = manager.ones(new Shape(10));
                            for (int i = 0; i < 3; i++) {
                                assertFailure(
                                        Assert.expectThrows(
                                                CollectiveException.class,
                                                () -> communicator.allReduce(array, ReduceOp.SUM)),
                                        rank,
                                        cause);
                                assertFailure(
                                        Assert.expectThrows(
                                                CollectiveException.class, communicator::barrier),
                                        rank,
                                        cause);
                            }
                            // what failed was no operation
                            Assert.assertEquals(communicator.getCounts().total(), 0);
                        });
        for (Throwable outcome : outcomes) {
            Assert.assertNull(outcome);
        }
    }

    @Test(timeOut = 60_000)
    public void anInterruptedRankEndsTheGroup() throws Exception {
        List<Communicator> group = LocalCommunicator.create(2, LONG);
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
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
            Assert.assertTrue(outcomes[rank] instanceof CollectiveException, "" + outcomes[rank]);
            String message = outcomes[rank].getMessage();
            Assert.assertEquals(
                    message, "rank " + rank + " of 2: rank 0 was interrupted in barrier #1");
            Assert.assertTrue(outcomes[rank].getCause() instanceof InterruptedException);
        }
    }

    /** A rank that fails frees its memory: no other may be reading it any more. */
    @Test(timeOut = 90_000)
    public void aFailureWaitsUntilNobodyReadsTheTensors() throws Exception {
        ForkedJvm.Result result = new ForkedJvm().run(AbortRaces.class, "500");
        Assert.assertEquals(result.exitCode(), 0, result.output());
        Assert.assertTrue(result.output().endsWith("done\n"), result.output());
    }

    private static void assertFailure(Throwable failure, int rank, Throwable cause) {
        Assert.assertTrue(failure instanceof CollectiveException, "" + failure);
        String message = failure.getMessage();
        Assert.assertTrue(message.contains("rank " + rank), message);
        Assert.assertTrue(message.contains(cause.getMessage()), message);
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
        ((AbstractCommunicator) group.get(0))
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
                            long[] sent = {first ? 2 : 1, first ? 2 : 3};
                            long[] expected = {2, first ? 2 : 3};
                            Shape received = new Shape(first ? 4 : 5);
                            communicator
                                    .allToAll(
                                            TensorView.of(manager.ones(new Shape(4))),
                                            TensorView.of(manager.ones(received)),
                                            sent,
                                            expected)
                                    .await();
                        });
        Assert.assertNotNull(outcomes[0]);
        Assert.assertTrue(outcomes[1] instanceof CollectiveException, "" + outcomes[1]);
    }
}
