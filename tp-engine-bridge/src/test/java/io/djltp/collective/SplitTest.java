package io.djltp.collective;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.collective.AbstractCommunicator;
import io.djltp.internal.collective.GroupFailure;
import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.concurrent.CyclicBarrier;

/** A group falls into parts that compute on their own and end together. */
public class SplitTest {

    private static float reduced(Communicator group, NDManager manager, int value, ReduceOp op) {
        NDArray array = manager.full(new Shape(70_000), (float) value);
        group.allReduce(array, op);
        return array.getFloat(69_999);
    }

    @Test(timeOut = 60_000)
    public void ranksOfOneColorComputeTogether() throws Exception {
        RankThreads.run(
                5,
                (group, manager) -> {
                    int rank = group.getRank();
                    // backwards: of 0, 2, 4 and of 1, 3 the last becomes the first
                    try (Communicator part = group.split(rank % 2, -rank)) {
                        int size = rank % 2 == 0 ? 3 : 2;
                        Assert.assertEquals(part.getSize(), size);
                        Assert.assertEquals(part.getRank(), size - 1 - rank / 2);
                        float sum = reduced(part, manager, rank, ReduceOp.SUM);
                        Assert.assertEquals(sum, rank % 2 == 0 ? 6f : 4f);
                        EveryOperation.run(part, DataType.FLOAT32, 100);
                        // the group goes on beside its parts
                        sum = reduced(group, manager, rank, ReduceOp.SUM);
                        Assert.assertEquals(sum, 10f);
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
                        Assert.assertEquals(half.getRank(), rank % 4, "equal keys keep the order");
                        Assert.assertEquals(quarter.getSize(), 2);
                        float sum = reduced(quarter, manager, rank, ReduceOp.SUM);
                        Assert.assertEquals(sum, (float) (rank / 2 * 4 + 1));
                        float most = reduced(again, manager, rank, ReduceOp.MAX);
                        Assert.assertEquals(most, rank < 4 ? 3f : 7f);
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
                    part.allReduce(manager.create(1f), ReduceOp.SUM);
                    allDone.await(); // an abort may overtake the end of an operation of the group
                    group.abort(new IllegalStateException("enough"));
                    Refusals.expect(
                            CollectiveException.class,
                            () -> part.allReduce(manager.create(1f), ReduceOp.SUM),
                            "enough");
                });
    }

    @Test(timeOut = 60_000)
    public void aPartThatIsClosedIsForgotten() throws Exception {
        RankThreads.run(
                4,
                (group, manager) -> {
                    GroupFailure failure = AbstractCommunicator.of(group).getFailure();
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
                (group, manager) ->
                        Refusals.throwsArgument(
                                () -> group.split(-1, 0),
                                "The color of a split must be 0 or more, not -1"));
    }
}
