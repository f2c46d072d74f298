package io.djltp.spark.ml;

import ai.djl.ndarray.NDManager;

import io.djltp.collective.GatheredNumbers;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool;

import java.util.Arrays;

/**
 * The labels of a batch on all ranks, which the loss of a head over all of them needs: one
 * all-gather of 8 bytes a row.
 */
final class LabelGather {

    private final RankPool ranks;
    private final NDManager manager;

    LabelGather(RankPool ranks, NDManager manager) {
        this.ranks = ranks;
        this.manager = manager;
    }

    /**
     * Returns the labels of a batch, in the order of the ranks.
     *
     * @param own those of the ranks of this task
     * @param rows the rows of the batch
     */
    long[] gather(long[] own, long rows) {
        if (!ranks.isDistributed()) {
            return own;
        }
        long[] shares = new long[ranks.getWorldSize()];
        Arrays.setAll(shares, rank -> RankRows.rowsOf(rank, shares.length, rows));
        int[] starts = new int[ranks.size() + 1];
        for (int i = 0; i < ranks.size(); i++) {
            starts[i + 1] = starts[i] + (int) shares[ranks.getContext(i).getRank()];
        }
        return ranks.run(
                        context -> {
                            int local = context.getLocalIndex();
                            long[] mine = Arrays.copyOfRange(own, starts[local], starts[local + 1]);
                            return gather(context, mine, shares);
                        })
                .get(0);
    }

    private long[] gather(ParallelContext context, long[] mine, long[] shares) {
        try (NDManager scope = manager.newSubManager(context.getDevice())) {
            return GatheredNumbers.of(
                    context.getWorld(), scope, mine, shares, "the labels of the batch");
        }
    }
}
