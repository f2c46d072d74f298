package io.djltp.internal.region;

import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.internal.collective.local.LocalCommunicator;
import io.djltp.internal.torch.Autograd;
import io.djltp.testing.TestArrays;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.time.Duration;
import java.util.Arrays;
import java.util.List;

/** A failure in the middle of a backward pass ends the pass and can be told from its cause. */
public class MappingFailureTest {

    private static final Duration LONG = Duration.ofMinutes(10);

    @Test(timeOut = 60_000)
    public void theCauseOfAFailedBackwardPassIsKept() throws Exception {
        IllegalStateException cause = new IllegalStateException("rank 1 has no data left");
        RankThreads.runAll(
                LocalCommunicator.create(2, LONG),
                (communicator, manager) -> {
                    if (communicator.getRank() == 1) {
                        communicator.abort(cause);
                        return;
                    }
                    try (RegionMappings mappings = new RegionMappings(communicator)) {
                        Assert.assertNull(mappings.takeFailure());
                        NDArray leaf = TestArrays.leaf(manager.ones(new Shape(2, 3)));
                        String message = failBackward(mappings.copyToRegion(leaf));
                        Assert.assertTrue(message.contains(cause.getMessage()), message);
                        // later failures do not hide the first
                        failBackward(mappings.scatterToRegion(leaf, Cut.balanced(3, 2)));
                        Throwable failure = mappings.takeFailure();
                        Assert.assertTrue(failure instanceof CollectiveException, "" + failure);
                        Assert.assertSame(failure.getCause(), cause);
                        Assert.assertTrue(
                                Arrays.stream(failure.getStackTrace())
                                        .anyMatch(e -> e.getMethodName().equals("allReduce")),
                                "not the all-reduce");
                        Assert.assertNull(mappings.takeFailure(), "taken twice");
                    }
                });
    }

    private static String failBackward(NDArray mapped) {
        NDArray output = TestArrays.times(mapped, 2);
        return Assert.expectThrows(
                        EngineException.class, () -> Autograd.backward(output, output.onesLike()))
                .getMessage();
    }

    @Test(timeOut = 60_000)
    public void aForwardFailureIsThrownAsItIs() throws Exception {
        List<Communicator> group = LocalCommunicator.create(2, LONG);
        IllegalStateException cause = new IllegalStateException("rank 0 is gone");
        group.get(0).abort(cause);
        CollectiveException[] failures =
                RankThreads.failures(
                        group,
                        (communicator, manager) -> {
                            try (RegionMappings mappings = new RegionMappings(communicator)) {
                                mappings.reduceFromRegion(manager.ones(new Shape(2, 3)));
                            }
                        });
        for (CollectiveException failure : failures) {
            Assert.assertSame(failure.getCause(), cause);
        }
    }

    /** The order of the ranks' graphs differs: an error on both, not a wrong sum. */
    @Test(timeOut = 60_000)
    public void graphsThatDifferAreFound() throws Exception {
        Throwable[] failures = new Throwable[2];
        RankThreads.outcomes(
                LocalCommunicator.create(2, LONG),
                (communicator, manager) -> {
                    int rank = communicator.getRank();
                    try (RegionMappings mappings = new RegionMappings(communicator)) {
                        NDArray leaf = TestArrays.leaf(manager.ones(new Shape(2 + rank, 3)));
                        failBackward(mappings.copyToRegion(leaf));
                        failures[rank] = mappings.takeFailure();
                    }
                });
        for (Throwable failure : failures) {
            Assert.assertTrue(failure instanceof CollectiveException, "" + failure);
            String message = failure.getMessage();
            Assert.assertTrue(
                    message.contains("rank 0 all-reduce #1 (SUM) of (2, 3) float32")
                            && message.contains("rank 1 all-reduce #1 (SUM) of (3, 3) float32"),
                    message);
        }
    }
}
