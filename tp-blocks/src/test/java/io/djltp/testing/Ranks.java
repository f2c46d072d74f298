package io.djltp.testing;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.index.NDIndex;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.rank.RankPool;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;

import java.util.List;

/** Runs something on ranks without a trainer, and cuts arrays as ranks do. */
public final class Ranks {

    private Ranks() {}

    /**
     * Runs a task on ranks that live as long as it.
     *
     * @param mode how the ranks share the work
     * @param ranks the number of ranks
     * @param task the task
     * @param <T> the type of a rank's result
     * @return the results, in the order of the ranks
     */
    public static <T> List<T> run(ParallelMode mode, int ranks, RankPool.RankTask<T> task) {
        try (RankPool pool = new RankPool(config(mode, ranks))) {
            return pool.run(task);
        }
    }

    /**
     * Returns a configuration with the defaults.
     *
     * @param mode how the ranks share the work
     * @param ranks the number of ranks
     * @return the configuration
     */
    public static ParallelConfig config(ParallelMode mode, int ranks) {
        return builder(mode, ranks).build();
    }

    /** Returns a builder of a configuration. */
    public static ParallelConfig.Builder builder(ParallelMode mode, int ranks) {
        return ParallelConfig.builder().setMode(mode).setRanks(ranks);
    }

    /**
     * Copies a rank's range of an axis.
     *
     * @param whole the whole
     * @param axis the axis
     * @param group the rank's end of the group over which the axis is cut
     * @return the copy
     */
    public static NDArray slice(NDArray whole, int axis, Communicator group) {
        return slice(whole, axis, group.getRank(), group.getSize());
    }

    /**
     * Copies a rank's range of an axis.
     *
     * @param whole the whole
     * @param axis the axis
     * @param rank the rank
     * @param ranks the number of ranks
     * @return the copy
     */
    public static NDArray slice(NDArray whole, int axis, int rank, int ranks) {
        ShardRange range = Cut.balanced(whole.getShape().get(axis), ranks).getRange(rank);
        NDIndex index = new NDIndex();
        for (int i = 0; i < axis; i++) {
            index = index.addAllDim();
        }
        try (NDArray view = whole.get(index.addSliceDim(range.start(), range.end()))) {
            return view.duplicate();
        }
    }
}
