package io.djltp.examples.doctor;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.RankPool;
import io.djltp.internal.torch.TensorView;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * All-reduces of growing size on all ranks: right or wrong, and how fast, as nccl-tests measures
 * it. The time of an operation is that of the slowest rank, the median of several series.
 */
final class AllReduceRun {

    private static final int SERIES = 7;
    private static final int WARM_UPS = 4;

    /**
     * One line of the table.
     *
     * @param bytes the bytes of one rank
     * @param microseconds the time
     * @param algorithmGbs bytes a second of what one rank puts in
     * @param busGbs the same, made comparable between numbers of ranks
     * @param wrong elements that are not the sum
     */
    record Line(long bytes, double microseconds, double algorithmGbs, double busGbs, long wrong) {}

    private final RankPool pool;
    private final NDManager manager;

    /**
     * Prepares the run.
     *
     * @param pool the ranks
     * @param manager the manager of the tensors
     */
    AllReduceRun(RankPool pool, NDManager manager) {
        this.pool = pool;
        this.manager = manager;
    }

    /**
     * Measures all sizes.
     *
     * @param largest the largest size in bytes
     * @return one line for each size
     */
    List<Line> run(long largest) {
        for (int i = 0; i < WARM_UPS; i++) {
            measure(4096); // until the code is compiled
        }
        List<Line> lines = new ArrayList<>();
        for (long bytes = 8; bytes <= largest; bytes *= 8) {
            lines.add(measure(bytes));
        }
        if (lines.get(lines.size() - 1).bytes() != largest) {
            lines.add(measure(largest));
        }
        return lines;
    }

    private Line measure(long bytes) {
        List<double[]> results = pool.run(context -> measure(context, bytes));
        double seconds = results.get(0)[0]; // the same on all ranks
        double algorithm = bytes / seconds / 1e9;
        int ranks = pool.getWorldSize();
        double bus = algorithm * 2 * (ranks - 1) / ranks;
        return new Line(bytes, seconds * 1e6, algorithm, bus, (long) results.get(0)[1]);
    }

    private double[] measure(ParallelContext context, long bytes) {
        Communicator world = context.getWorld();
        try (NDManager scope = manager.newSubManager(context.getDevice())) {
            NDArray tensor = scope.full(new Shape(bytes / 4), context.getRank() + 1f);
            TensorView view = TensorView.of(tensor);
            world.allReduce(view, ReduceOp.SUM).await();
            float expected = context.getSize() * (context.getSize() + 1) / 2f;
            double wrong = tensor.neq(expected).countNonzero().getLong();
            // sums of the other calls grow, which takes no longer
            CollectiveSeries series =
                    new CollectiveSeries(
                            world, scope, () -> world.allReduce(view, ReduceOp.SUM).await());
            return new double[] {median(series), CollectiveSeries.agreed(world, scope, wrong)};
        }
    }

    private static double median(CollectiveSeries series) {
        double[] seconds = new double[SERIES];
        for (int i = 0; i < SERIES; i++) {
            seconds[i] = series.seconds();
        }
        Arrays.sort(seconds);
        return seconds[SERIES / 2];
    }

    /**
     * Measures what an all-reduce in shared memory can at best be: each of as many threads as there
     * are ranks reads and writes the bytes once.
     *
     * @param bytes the size
     * @return the time of the slowest thread in seconds, the median of several runs
     */
    double copySeconds(int bytes) {
        return pool.run(
                        context ->
                                median(
                                        new CollectiveSeries(
                                                context.getWorld(),
                                                manager,
                                                CollectiveSeries.copy(bytes))))
                .get(0); // the same on all ranks
    }
}
