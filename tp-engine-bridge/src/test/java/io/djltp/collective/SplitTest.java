package io.djltp.collective;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.concurrent.CyclicBarrier;

/** A group falls into parts that compute on their own and end together. */
public class SplitTest {

    @Test(timeOut = 60_000)
    public void ranksOfOneColorComputeTogether() throws Exception {
        RankThreads.run(
                5,
                (group, manager) -> {
                    int rank = group.getRank();
                    try (Communicator part = group.split(rank % 2, 0)) {
                        Assert.assertEquals(part.getSize(), rank % 2 == 0 ? 3 : 2);
                        Assert.assertEquals(part.getRank(), rank / 2);
                        NDArray sum = manager.create((float) rank);
                        part.allReduce(sum, ReduceOp.SUM);
                        Assert.assertEquals(sum.getFloat(), rank % 2 == 0 ? 6f : 4f);
                        // the group goes on beside its parts
                        NDArray all = manager.create((float) rank);
                        group.allReduce(all, ReduceOp.SUM);
                        Assert.assertEquals(all.getFloat(), 10f);
                    }
                });
    }

    @Test(timeOut = 60_000)
    public void theKeyGivesTheOrder() throws Exception {
        RankThreads.run(
                4,
                (group, manager) -> {
                    try (Communicator part = group.split(7, -group.getRank())) {
                        Assert.assertEquals(part.getRank(), 3 - group.getRank());
                        NDArray first = manager.create((float) group.getRank());
                        part.broadcast(io.djltp.internal.torch.TensorView.of(first), 0).await();
                        Assert.assertEquals(first.getFloat(), 3f);
                    }
                });
    }

    @Test(timeOut = 60_000)
    public void partsAreSplitAgain() throws Exception {
        RankThreads.run(
                8,
                (group, manager) -> {
                    int rank = group.getRank();
                    try (Communicator half = group.split(rank / 4, 0);
                            Communicator quarter = half.split(half.getRank() / 2, 0);
                            Communicator again = group.split(rank / 4, 0)) {
                        Assert.assertEquals(quarter.getSize(), 2);
                        NDArray sum = manager.ones(new Shape(70_000)).muli(rank);
                        quarter.allReduce(sum, ReduceOp.SUM);
                        Assert.assertEquals(sum.getFloat(69_999), (float) (rank / 2 * 4 + 1));
                        NDArray ranks = manager.create((float) rank);
                        again.allReduce(ranks, ReduceOp.MAX);
                        Assert.assertEquals(ranks.getFloat(), rank < 4 ? 3f : 7f);
                    }
                });
    }

    @Test(timeOut = 60_000)
    public void aPartEndsWithItsGroup() throws Exception {
        CyclicBarrier allDone = new CyclicBarrier(2);
        RankThreads.run(
                2,
                (group, manager) -> {
                    Communicator part = group.split(group.getRank(), 0);
                    NDArray one = manager.create(1f);
                    part.allReduce(one, ReduceOp.SUM);
                    allDone.await(); // an abort may overtake the end of an operation of the group
                    group.abort(new IllegalStateException("enough"));
                    CollectiveException failure =
                            Assert.expectThrows(
                                    CollectiveException.class,
                                    () -> part.allReduce(one, ReduceOp.SUM));
                    Assert.assertTrue(failure.getMessage().contains("enough"), "" + failure);
                });
    }

    @Test(timeOut = 60_000)
    public void aPartThatIsClosedIsForgotten() throws Exception {
        RankThreads.run(
                4,
                (group, manager) -> {
                    GroupFailure failure = ((AbstractCommunicator) group).getFailure();
                    group.barrier();
                    int before = failure.countListeners();
                    group.barrier();
                    for (int i = 0; i < 100; i++) {
                        try (Communicator part = group.split(group.getRank() % 2, 0)) {
                            part.barrier();
                        }
                    }
                    group.barrier();
                    Assert.assertEquals(failure.countListeners(), before);
                });
    }

    @Test(timeOut = 60_000)
    public void negativeColorsAreRefused() throws Exception {
        RankThreads.run(
                1,
                (group, manager) -> {
                    IllegalArgumentException refusal =
                            Assert.expectThrows(
                                    IllegalArgumentException.class, () -> group.split(-1, 0));
                    Assert.assertEquals(
                            refusal.getMessage(), "The color of a split must be 0 or more, not -1");
                });
    }
}
