package io.djltp.spark.ml;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.rank.RankPool;
import io.djltp.torch.HostReads;
import io.djltp.torch.TensorView;

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
        int size = ranks.getWorldSize();
        int most = (int) RankRows.rowsOf(0, size, rows); // of a rank: what is sent is as long
        long[] starts = new long[ranks.size() + 1];
        for (int i = 0; i < ranks.size(); i++) {
            int rank = ranks.getContext(i).getRank();
            starts[i + 1] = starts[i] + RankRows.rowsOf(rank, size, rows);
        }
        long[] padded =
                ranks.run(
                                context -> {
                                    int local = context.getLocalIndex();
                                    long[] mine =
                                            Arrays.copyOf(
                                                    Arrays.copyOfRange(
                                                            own,
                                                            (int) starts[local],
                                                            (int) starts[local + 1]),
                                                    most);
                                    return gather(context.getWorld(), mine, context.getDevice());
                                })
                        .get(0);
        long[] all = new long[(int) rows];
        int at = 0;
        for (int rank = 0; rank < size; rank++) {
            int share = (int) RankRows.rowsOf(rank, size, rows);
            System.arraycopy(padded, rank * most, all, at, share);
            at += share;
        }
        return all;
    }

    private long[] gather(Communicator world, long[] mine, Device device) {
        long[] counts = new long[world.getSize()];
        Arrays.fill(counts, mine.length);
        world.setIssuer("the labels of the batch");
        try (NDManager scope = manager.newSubManager(device);
                NDArray input = scope.create(mine);
                NDArray output =
                        scope.create(
                                new Shape((long) mine.length * counts.length), DataType.INT64)) {
            world.allGather(TensorView.of(input), TensorView.of(output), counts).await();
            return HostReads.longs(output);
        }
    }
}
