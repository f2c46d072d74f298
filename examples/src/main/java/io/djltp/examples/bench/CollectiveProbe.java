package io.djltp.examples.bench;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.examples.bench.BenchWorker.Measured;
import io.djltp.examples.bench.WorkerProcess.WorkerTask;
import io.djltp.examples.doctor.CollectiveSeries;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.RankPool;
import io.djltp.internal.torch.TensorView;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;

/** Collective operations in shared memory, and copies of as many bytes, on all ranks. */
final class CollectiveProbe implements Measured {

    /** What is measured of each size, in this order. */
    enum Operation {
        ALL_REDUCE,
        ALL_GATHER,
        REDUCE_SCATTER,
        COPY
    }

    private final NDManager manager = NDManager.newBaseManager();
    private final RankPool pool;
    private final List<List<CollectiveSeries>> series; // of each rank

    /**
     * Makes the arrays of all ranks.
     *
     * @param task the task
     */
    CollectiveProbe(WorkerTask task) {
        pool =
                new RankPool(
                        ParallelConfig.builder()
                                .setMode(ParallelMode.TENSOR)
                                .setRanks(task.ranks())
                                .optThreadsPerRank(task.threads())
                                .build());
        List<Long> sizes = Objects.requireNonNull(task.sizes());
        series = pool.run(context -> prepare(context, sizes));
    }

    private List<CollectiveSeries> prepare(ParallelContext context, List<Long> sizes) {
        NDManager own = manager.newSubManager(context.getDevice());
        List<CollectiveSeries> all = new ArrayList<>();
        for (long bytes : sizes) {
            for (Operation operation : Operation.values()) {
                Runnable call =
                        operation == Operation.COPY
                                ? CollectiveSeries.copy((int) bytes)
                                : call(operation, context.getWorld(), own, bytes / Float.BYTES);
                all.add(new CollectiveSeries(context.getWorld(), own, call));
            }
        }
        return all;
    }

    private static Runnable call(
            Operation operation, Communicator world, NDManager manager, long elements) {
        long[] counts = new long[world.getSize()];
        Arrays.fill(counts, elements / counts.length);
        counts[0] += elements % counts.length;
        NDArray whole = manager.zeros(new Shape(elements)); // stays 0, however often it is summed
        NDArray part = manager.zeros(new Shape(counts[world.getRank()]));
        TensorView all = TensorView.of(whole);
        TensorView own = TensorView.of(part);
        switch (operation) {
            case ALL_REDUCE:
                return () -> world.allReduce(all, ReduceOp.SUM).await();
            case ALL_GATHER:
                return () -> world.allGather(own, all, counts).await();
            default:
                return () -> world.reduceScatter(all, own, counts, ReduceOp.SUM).await();
        }
    }

    /**
     * {@inheritDoc}
     *
     * @return for each size the seconds of each operation
     */
    @Override
    public double[] step() {
        return pool.run(
                        context ->
                                series.get(context.getRank()).stream()
                                        .mapToDouble(CollectiveSeries::seconds)
                                        .toArray())
                .get(0); // the same on all ranks
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        pool.close();
        manager.close();
    }
}
