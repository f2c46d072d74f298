package io.djltp.internal.collective.nccl;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Collective;
import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.collective.ReduceOp;
import io.djltp.collective.Work;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.cuda.global.cudart;
import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

/** The nccl backend does what its interface says, with all types and numbers of ranks. */
public class NcclCommunicatorTest {

    private static final DataType[] TYPES = {
        DataType.FLOAT32,
        DataType.FLOAT64,
        DataType.FLOAT16,
        DataType.BFLOAT16,
        DataType.INT32,
        DataType.INT64
    };

    /** Returns every type with every number of ranks. */
    @DataProvider
    public static Object[][] typesAndSizes() {
        List<Object[]> cases = new ArrayList<>();
        for (DataType type : TYPES) {
            for (int size : new int[] {1, 2, 3, 4, 8}) {
                cases.add(new Object[] {type, size});
            }
        }
        return cases.toArray(new Object[0][]);
    }

    @Test(dataProvider = "typesAndSizes", timeOut = 60_000)
    public void everyOperationIsRight(DataType type, int size) throws Exception {
        run(
                size,
                (group, manager) -> {
                    for (int length : new int[] {0, 1, 7, 5003}) {
                        EveryOperation.run(group, type, length);
                    }
                });
    }

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
                        works.add(group.allReduce(TensorView.of(arrays.get(i)), ReduceOp.SUM));
                    }
                    for (int i = 49; i >= 0; i--) {
                        works.get(i).await();
                        works.get(i).await(); // as often as one likes
                        Assert.assertEquals(arrays.get(i).toFloatArray(), new float[] {3f * i, 3});
                    }
                    Assert.assertEquals(group.getCounts().get(Collective.ALL_REDUCE), 50);
                });
    }

    @Test(timeOut = 60_000)
    public void noRankLeavesABarrierBeforeAllHaveCome() throws Exception {
        int rounds = 100;
        AtomicInteger[] come = new AtomicInteger[rounds];
        Arrays.setAll(come, i -> new AtomicInteger());
        run(
                4,
                (group, manager) -> {
                    for (int i = 0; i < rounds; i++) {
                        if (i % 4 == group.getRank() && i % 10 == 0) {
                            Thread.sleep(1); // each is the last from time to time
                        }
                        come[i].incrementAndGet();
                        group.barrier();
                        Assert.assertEquals(come[i].get(), 4, "round " + i);
                    }
                });
    }

    @Test(timeOut = 60_000)
    public void partsComputeOnTheirOwn() throws Exception {
        run(
                6,
                (group, manager) -> {
                    int rank = group.getRank();
                    // backwards: of 0, 2, 4 and of 1, 3, 5 the last becomes the first
                    try (Communicator part = group.split(rank % 2, -rank)) {
                        Assert.assertEquals(part.getSize(), 3);
                        Assert.assertEquals(part.getRank(), 2 - rank / 2);
                        EveryOperation.run(part, DataType.FLOAT32, 100);
                        NDArray array = manager.create(new float[] {rank});
                        part.allReduce(array, ReduceOp.SUM);
                        Assert.assertEquals(array.toFloatArray()[0], rank % 2 == 0 ? 6f : 9f);
                        try (Communicator single = part.split(part.getRank(), 0)) {
                            Assert.assertEquals(single.getSize(), 1);
                            single.barrier();
                        }
                    }
                    EveryOperation.run(group, DataType.FLOAT32, 100);
                });
    }

    /** An operation sees what was queued before it, and is seen by what is queued after it. */
    @Test(timeOut = 60_000)
    public void operationsFollowTheCurrentStreamWithoutBlockingTheThread() throws Exception {
        long millis = 300;
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
                        Work work = group.allReduce(TensorView.of(array), ReduceOp.SUM);
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
            Assert.assertEquals(settled(), before == null ? settled() : before);
            before = settled();
        }
    }

    /** Returns what is live when the threads of destroyed streams have ended. */
    static List<Long> settled() throws InterruptedException {
        for (int i = 0; i < 100 && NcclDouble.live().get(1) > 0; i++) {
            Thread.sleep(10);
        }
        return NcclDouble.live();
    }

    private static long address(NDArray array) {
        return TensorView.of(array).address();
    }

    /** Runs all ranks of a new group. If one fails, the others are stopped. */
    static void run(int size, RankThreads.Body body) throws Exception {
        List<Communicator> group = NcclGroups.create(size, RankThreads.TIMEOUT);
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (communicator, manager) -> {
                            try {
                                body.run(communicator, manager);
                            } catch (Throwable t) {
                                communicator.abort(t);
                                throw t;
                            }
                        });
        group.forEach(Communicator::close);
        for (Throwable outcome : outcomes) {
            if (outcome != null) {
                throw new AssertionError(outcome);
            }
        }
    }
}
