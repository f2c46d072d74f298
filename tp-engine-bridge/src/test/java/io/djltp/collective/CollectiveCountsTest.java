package io.djltp.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.internal.torch.TensorView;

import org.bytedeco.pytorch.Tensor;
import org.testng.Assert;
import org.testng.annotations.Test;

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
                    Tensor tensor = TestTensors.zeros(DataType.INT64, 7);
                    communicator.allReduce(TensorView.of(tensor), ReduceOp.MIN).await();
                    communicator.barrier();
                    CollectiveCounts before = communicator.getCounts();
                    communicator.allReduce(TensorView.of(tensor), ReduceOp.MIN).await();
                    communicator.allReduce(TensorView.of(tensor), ReduceOp.MAX).await();
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

    private static void callAll(Communicator group) {
        int size = group.getSize();
        long[] shares = new long[size];
        java.util.Arrays.fill(shares, 3);
        Tensor floats = TestTensors.zeros(DataType.FLOAT32, 10);
        Tensor share = TestTensors.zeros(DataType.BFLOAT16, 3).narrow(0, 0, 3);
        group.allReduce(TensorView.of(floats), ReduceOp.SUM).await();
        group.allGather(
                        TensorView.of(share),
                        TensorView.of(TestTensors.zeros(DataType.BFLOAT16, 3 * size)),
                        shares)
                .await();
        group.reduceScatter(
                        TensorView.of(TestTensors.zeros(DataType.INT64, 3 * size)),
                        TensorView.of(TestTensors.zeros(DataType.INT64, 3)),
                        shares,
                        ReduceOp.SUM)
                .await();
        group.broadcast(TensorView.of(TestTensors.zeros(DataType.FLOAT16, 5)), 0).await();
        long[] parts = new long[size];
        parts[group.getRank()] = 4; // all of it stays where it is
        group.allToAll(
                        TensorView.of(TestTensors.zeros(DataType.INT32, 4)),
                        TensorView.of(TestTensors.zeros(DataType.INT32, 4)),
                        parts,
                        parts)
                .await();
        group.split(group.getRank(), 0).close();
        group.barrier();
    }
}
