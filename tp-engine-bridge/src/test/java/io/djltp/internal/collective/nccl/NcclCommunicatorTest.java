package io.djltp.internal.collective.nccl;

import static io.djltp.collective.ReduceOp.SUM;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Collective;
import io.djltp.collective.Communicator;
import io.djltp.collective.EveryOperation;
import io.djltp.collective.RankThreads;
import io.djltp.collective.Work;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.cuda.global.cudart;
import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/** The nccl backend does what its interface says, with all types and numbers of ranks. */
public class NcclCommunicatorTest {

    @Test(timeOut = 60_000)
    public void largeTensorsAreRight() throws Exception {
        run(2, (group, manager) -> EveryOperation.run(group, DataType.FLOAT32, 1_000_003));
    }

    @Test(timeOut = 60_000)
    public void operationsOverlapUntilTheyAreAwaited() throws Exception {
        run(
                3,
                (group, manager) -> {
                    Assert.assertTrue(group.isAsynchronous());
                    List<NDArray> arrays = new ArrayList<>();
                    List<Work> works = new ArrayList<>();
                    for (int i = 0; i < 50; i++) {
                        arrays.add(manager.create(new float[] {i, group.getRank()}));
                        works.add(group.allReduce(TensorView.of(arrays.get(i)), SUM));
                    }
                    for (int i = 49; i >= 0; i--) {
                        works.get(i).await();
                        works.get(i).await(); // as often as one likes
                        Assert.assertEquals(arrays.get(i).toFloatArray(), new float[] {3f * i, 3});
                    }
                    Assert.assertEquals(group.getCounts().get(Collective.ALL_REDUCE), 50);
                });
    }

    /** An operation sees what was queued before it, and is seen by what is queued after it. */
    @Test(timeOut = 60_000)
    public void operationsFollowTheCurrentStreamWithoutBlockingTheThread() throws Exception {
        long millis = 300;
        NcclDouble.load();
        long first = NcclDouble.calls("cudaStreamCreateWithPriority");
        NcclCommunicator.orderOnStream(true);
        try {
            run(
                    2,
                    (group, manager) -> {
                        int rank = group.getRank();
                        NDArray source = manager.full(new Shape(1000), rank + 1f);
                        NDArray array = manager.zeros(new Shape(1000));
                        NDArray result = manager.zeros(new Shape(1000));
                        group.barrier();
                        Cuda.use(rank);
                        long start = System.nanoTime();
                        NcclDouble.copyLater(address(array), address(source), 1000, millis);
                        Work work = group.allReduce(TensorView.of(array), SUM);
                        work.await();
                        NcclDouble.copyLater(address(result), address(array), 1000, 0);
                        long elapsed = System.nanoTime() - start;
                        Assert.assertTrue(elapsed < millis * 1_000_000, elapsed / 1e6 + " ms");
                        cudart.cudaStreamSynchronize(null);
                        elapsed = System.nanoTime() - start;
                        Assert.assertTrue(elapsed >= millis * 1_000_000, elapsed / 1e6 + " ms");
                        Assert.assertEquals(result.toFloatArray()[999], 3f);
                        group.barrier();
                    });
            // before what is computed
            Assert.assertEquals(NcclDouble.calls("cudaStreamCreateWithPriority") - first, 2);
        } finally {
            NcclCommunicator.orderOnStream(false);
        }
    }

    /** Whoever closes an array is given its memory again only when the operation is past it. */
    @Test(timeOut = 60_000)
    public void memoryIsKeptUntilTheOperationIsPast() throws Exception {
        NcclCommunicator.orderOnStream(true);
        try {
            run(
                    2,
                    (group, manager) -> {
                        if (group.getRank() == 1) {
                            Thread.sleep(200);
                        }
                        List<Work> works = new ArrayList<>();
                        NDList arrays = new NDList();
                        for (int i = 0; i < 40; i++) {
                            arrays.add(manager.ones(new Shape(1000)));
                            works.add(group.allReduce(TensorView.of(arrays.get(i)), SUM));
                        }
                        arrays.close();
                        NDList others = new NDList();
                        for (int i = 0; i < 100; i++) {
                            others.add(manager.full(new Shape(1000), 7f));
                        }
                        group.barrier();
                        Cuda.use(group.getRank());
                        cudart.cudaDeviceSynchronize();
                        for (NDArray other : others) {
                            Assert.assertEquals(other.max().getFloat(), 7f);
                            Assert.assertEquals(other.min().getFloat(), 7f);
                        }
                        works.forEach(Work::await);
                    });
        } finally {
            NcclCommunicator.orderOnStream(false);
        }
    }

    @Test(timeOut = 60_000)
    public void nothingIsLeftBehind() throws Exception {
        List<Long> before = null;
        for (int i = 0; i < 5; i++) {
            run(
                    4,
                    (group, manager) -> {
                        // left open: it goes with the group
                        Communicator part = group.split(group.getRank() / 2, 0);
                        EveryOperation.run(part, DataType.INT64, 10);
                        EveryOperation.run(group, DataType.INT64, 10);
                    });
            Assert.assertEquals(
                    NcclDouble.settled(), before == null ? NcclDouble.settled() : before);
            before = NcclDouble.settled();
        }
    }

    private static long address(NDArray array) {
        return TensorView.of(array).address();
    }

    private static void run(int size, RankThreads.Body body) throws Exception {
        RankThreads.runAll(NcclGroups.create(size, RankThreads.TIMEOUT), body);
    }
}
