package io.djltp.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.internal.torch.TensorView;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.Arrays;

/** The counts say what a rank has called, and how many bytes it has put in. */
public class CollectiveCountsTest {

    @Test(timeOut = 60_000)
    public void everyOperationCountsOnce() throws Exception {
        RankThreads.run(
                2,
                (communicator, manager) -> {
                    CollectiveCounts before = communicator.getCounts();
                    callAll(communicator);
                    CollectiveCounts counts = communicator.getCounts();
                    for (Collective collective : Collective.values()) {
                        Assert.assertEquals(counts.get(collective), 1, collective.toString());
                    }
                    Assert.assertEquals(counts.total(), 7);
                    // all-reduce 10 x 4, all-gather of 3 x 2, reduce-scatter of 6 x 8, broadcast 5
                    // x 2, all-to-all of 4 x 4
                    Assert.assertEquals(counts.bytes(), 40 + 6 + 48 + 10 + 16);
                    Assert.assertEquals(
                            counts.toString(),
                            "1 all-reduce, 1 all-gather, 1 reduce-scatter, 1 broadcast,"
                                    + " 1 all-to-all, 1 split, 1 barrier");
                    // a snapshot does not change
                    Assert.assertEquals(before.total(), 0);
                    Assert.assertEquals(before.toString(), "none");
                });
    }

    @Test(timeOut = 60_000)
    public void aDifferenceHoldsWhatHappenedInBetween() throws Exception {
        RankThreads.run(
                3,
                (communicator, manager) -> {
                    TensorView tensor = zeros(DataType.INT64, 7);
                    communicator.allReduce(tensor, ReduceOp.MIN).await();
                    communicator.barrier();
                    CollectiveCounts before = communicator.getCounts();
                    communicator.allReduce(tensor, ReduceOp.MIN).await();
                    communicator.allReduce(tensor, ReduceOp.MAX).await();
                    CollectiveCounts difference = communicator.getCounts().minus(before);
                    Assert.assertEquals(difference.toString(), "2 all-reduce");
                    Assert.assertEquals(difference.bytes(), 2 * 7 * 8);
                    Assert.assertEquals(communicator.getCounts().get(Collective.ALL_REDUCE), 3);
                });
    }

    @Test(timeOut = 60_000)
    public void aGroupOfOneCountsNothing() throws Exception {
        RankThreads.run(
                1,
                (communicator, manager) -> {
                    callAll(communicator);
                    Assert.assertEquals(communicator.getCounts().total(), 0);
                    Assert.assertEquals(communicator.getCounts().bytes(), 0);
                });
    }

    private static TensorView zeros(DataType type, long length) {
        return TensorView.of(TestTensors.zeros(type, length));
    }

    private static void callAll(Communicator group) {
        int size = group.getSize();
        long[] shares = new long[size];
        Arrays.fill(shares, 3);
        long[] parts = new long[size];
        parts[group.getRank()] = 4; // all of it stays where it is
        DataType half = DataType.BFLOAT16;
        DataType wide = DataType.INT64;
        group.allReduce(zeros(DataType.FLOAT32, 10), ReduceOp.SUM).await();
        group.allGather(zeros(half, 3), zeros(half, 3 * size), shares).await();
        group.reduceScatter(zeros(wide, 3 * size), zeros(wide, 3), shares, ReduceOp.SUM).await();
        group.broadcast(zeros(DataType.FLOAT16, 5), 0).await();
        group.allToAll(zeros(DataType.INT32, 4), zeros(DataType.INT32, 4), parts, parts).await();
        group.split(group.getRank(), 0).close();
        group.barrier();
    }
}
