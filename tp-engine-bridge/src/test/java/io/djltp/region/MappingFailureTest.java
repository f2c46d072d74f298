package io.djltp.region;

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
import java.util.List;

/** A failure in the middle of a backward pass ends the pass and can be told from its cause. */
public class MappingFailureTest {

    @Test(timeOut = 60_000)
    public void theCauseOfAFailedBackwardPassIsKept() throws Exception {
        List<Communicator> group = LocalCommunicator.create(2, Duration.ofMinutes(10));
        IllegalStateException cause = new IllegalStateException("rank 1 has no data left");
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (communicator, manager) -> {
                            if (communicator.getRank() == 1) {
                                communicator.abort(cause);
                                return;
                            }
                            try (RegionMappings mappings = new RegionMappings(communicator)) {
                                Assert.assertNull(mappings.takeFailure());
                                NDArray leaf = TestArrays.leaf(manager.ones(new Shape(2, 3)));
                                NDArray output = TestArrays.times(mappings.copyToRegion(leaf), 2);
                                NDArray gradient = manager.ones(new Shape(2, 3));
                                String message =
                                        Assert.expectThrows(
                                                        EngineException.class,
                                                        () -> Autograd.backward(output, gradient))
                                                .getMessage();
                                Assert.assertTrue(message.contains(cause.getMessage()), message);
                                // later failures do not hide the first
                                NDArray second =
                                        TestArrays.times(
                                                mappings.scatterToRegion(leaf, Cut.balanced(3, 2)),
                                                2);
                                Assert.expectThrows(
                                        EngineException.class,
                                        () ->
                                                Autograd.backward(
                                                        second, manager.ones(new Shape(2, 2))));
                                Throwable failure = mappings.takeFailure();
                                Assert.assertTrue(
                                        failure instanceof CollectiveException, "" + failure);
                                Assert.assertSame(failure.getCause(), cause);
                                Assert.assertTrue(
                                        java.util.Arrays.stream(failure.getStackTrace())
                                                .anyMatch(
                                                        e -> e.getMethodName().equals("allReduce")),
                                        "not the all-reduce");
                                Assert.assertNull(mappings.takeFailure(), "taken twice");
                            }
                        });
        for (Throwable outcome : outcomes) {
            if (outcome != null) {
                throw new AssertionError(outcome);
            }
        }
    }

    @Test(timeOut = 60_000)
    public void aForwardFailureIsThrownAsItIs() throws Exception {
        List<Communicator> group = LocalCommunicator.create(2, Duration.ofMinutes(10));
        IllegalStateException cause = new IllegalStateException("rank 0 is gone");
        group.get(0).abort(cause);
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (communicator, manager) -> {
                            try (RegionMappings mappings = new RegionMappings(communicator)) {
                                mappings.reduceFromRegion(manager.ones(new Shape(2, 3)));
                            }
                        });
        for (Throwable outcome : outcomes) {
            Assert.assertTrue(outcome instanceof CollectiveException, "" + outcome);
            Assert.assertSame(outcome.getCause(), cause);
        }
    }

    /** The order of the ranks' graphs differs: an error on both, not a wrong sum. */
    @Test(timeOut = 60_000)
    public void graphsThatDifferAreFound() throws Exception {
        List<Communicator> group = LocalCommunicator.create(2, Duration.ofMinutes(10));
        Throwable[] failures = new Throwable[2];
        RankThreads.outcomes(
                group,
                (communicator, manager) -> {
                    int rank = communicator.getRank();
                    try (RegionMappings mappings = new RegionMappings(communicator)) {
                        NDArray leaf = TestArrays.leaf(manager.ones(new Shape(2 + rank, 3)));
                        NDArray output = mappings.copyToRegion(leaf);
                        try {
                            Autograd.backward(output, manager.ones(output.getShape()));
                        } finally {
                            failures[rank] = mappings.takeFailure();
                        }
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
