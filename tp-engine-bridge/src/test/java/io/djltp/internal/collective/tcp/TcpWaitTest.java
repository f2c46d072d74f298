package io.djltp.internal.collective.tcp;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.collective.ReduceOp;
import io.djltp.collective.Work;
import io.djltp.internal.torch.TensorView;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;

/** A rank that waits leaves the core to those that compute. */
public class TcpWaitTest {

    private static final long MILLIS = 800;

    /** Rank 0 waits in its row for rank 1, while rank 2 has sent what is for the column. */
    @Test(timeOut = 60_000)
    public void messagesOfAnotherGroupDoNotKeepARankAwake() throws Exception {
        double[] seconds = new double[1];
        RankThreads.runAll(
                TcpGroups.create(4, RankThreads.TIMEOUT),
                (world, manager) -> {
                    int rank = world.getRank();
                    Communicator row = world.split(rank / 2, 0);
                    Communicator column = world.split(rank % 2, 0);
                    NDArray large = manager.ones(new Shape(500_000));
                    for (int i = 0; i < 3; i++) {
                        column.allReduce(large, ReduceOp.MAX);
                    }
                    world.barrier();
                    NDArray early = manager.ones(new Shape(500_000));
                    NDArray late = manager.ones(new Shape(9));
                    if (rank >= 2) {
                        Work work = column.allReduce(TensorView.of(early), ReduceOp.SUM);
                        row.allReduce(late, ReduceOp.SUM);
                        work.await();
                        return;
                    }
                    double before = cpuSeconds("tp-collectives-0");
                    if (rank == 1) {
                        Thread.sleep(MILLIS);
                    }
                    row.allReduce(late, ReduceOp.SUM);
                    if (rank == 0) {
                        seconds[0] = cpuSeconds("tp-collectives-0") - before;
                    }
                    column.allReduce(early, ReduceOp.SUM);
                    Assert.assertEquals(early.getFloat(499_999), 2f);
                });
        Assert.assertTrue(seconds[0] < 0.25e-3 * MILLIS, seconds[0] + " s of a core");
    }

    private static double cpuSeconds(String name) {
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        return Thread.getAllStackTraces().keySet().stream()
                        .filter(thread -> thread.getName().equals(name))
                        .mapToLong(thread -> threads.getThreadCpuTime(thread.getId()))
                        .sum()
                / 1e9;
    }
}
