package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.norm.BatchNorm;

import io.djltp.parameters.BlockWalk;
import io.djltp.parameters.ShardedBlock;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/**
 * Refuses a batch of which a rank would have one row, where DJL's batch normalization takes the
 * variance of the rank's rows. Libtorch has none of one value and throws, on that rank alone: the
 * others would wait for it, and the trainer be lost.
 */
final class NormalizedRows {

    private static final String FEW_ROWS =
            "leave an incomplete last batch out, setSampling(rows, shuffle, true), or choose a"
                    + " batch size that leaves two rows";

    private final Block block;
    private final int ranks;
    private final boolean overlaid;

    /**
     * Creates the check.
     *
     * @param block the network
     * @param ranks the number of ranks that share the rows
     * @param overlaid whether rows are gathered before the first layer that is cut
     */
    NormalizedRows(Block block, int ranks, boolean overlaid) {
        this.block = block;
        this.ranks = ranks;
        this.overlaid = overlaid;
    }

    /**
     * Checks a batch, before a rank computes with it.
     *
     * @param data the batch to be trained on
     * @throws IllegalArgumentException if a batch normalization would get one value of a channel
     */
    void check(NDList data) {
        long rows = BatchPart.rowsOf(data);
        if (ranks == 1 || rows >= 2L * ranks) {
            return;
        }
        List<String> found = new ArrayList<>();
        Set<Block> computed = ofRows();
        BlockWalk.of(
                block,
                (each, path, certain) -> {
                    if (certain && computed.contains(each) && hasOneValue(each, data)) {
                        found.add(path.isEmpty() ? "BatchNorm" : path);
                    }
                });
        if (!found.isEmpty()) {
            throw new IllegalArgumentException(
                    "The batch has "
                            + rows
                            + (rows == 1 ? " row" : " rows")
                            + " for "
                            + ranks
                            + " ranks, each of which normalizes its own, and a batch normalization"
                            + " cannot train on one value of a channel: "
                            + String.join(", ", found)
                            + ". "
                            + remedy(true, rows));
        }
    }

    /** Returns the batch normalizations that surely compute with a rank's rows. */
    private Set<Block> ofRows() {
        if (!overlaid) {
            return find(block, BatchNorm.class);
        }
        Set<Block> found = new HashSet<>();
        if (block instanceof SequentialBlock) {
            for (Block child : block.getChildren().values()) {
                if (!find(child, ShardedBlock.class).isEmpty()) {
                    break; // which gathers them
                }
                found.addAll(find(child, BatchNorm.class));
            }
        }
        return found;
    }

    private static Set<Block> find(Block network, Class<?> type) {
        Set<Block> found = new HashSet<>();
        BlockWalk.of(
                network,
                (each, path, certain) -> {
                    if (type.isInstance(each)) {
                        found.add(each);
                    }
                });
        return found;
    }

    /** Returns whether a block gets one value of a channel for each row, as far as is known. */
    private boolean hasOneValue(Block norm, NDList data) {
        if (!block.isInitialized() || !norm.isInitialized() || norm.describeInput().isEmpty()) {
            return false;
        }
        List<Shape> known = block.describeInput().values();
        Shape input = norm.describeInput().get(0).getValue();
        boolean same = known.size() == data.size();
        same = same && Arrays.stream(input.getShape()).allMatch(length -> length > 0);
        for (int i = 0; same && i < known.size(); i++) {
            NDArray array = data.get(i);
            int axes = array.getShape().dimension();
            same = axes > 0 && known.get(i).dimension() == axes;
            same = same && array.getShape().slice(1).equals(known.get(i).slice(1));
        }
        return same && input.size() == known.get(0).get(0) * input.get(1);
    }

    /**
     * Returns what can be done. A batch of one row has no statistics, whoever takes them.
     *
     * @param cut whether the rows of the batch are cut over the ranks
     * @param rows the rows of the whole batch
     */
    private static String remedy(boolean cut, long rows) {
        if (!cut || rows < 2) {
            return "What helps is to " + FEW_ROWS;
        }
        return "io.djltp.nn.SyncBatchNorm (in a plan, Style.batchNorm()) takes the statistics of"
                + " the whole batch. Else "
                + FEW_ROWS
                + " for each rank, or use TENSOR mode";
    }

    /**
     * Returns what to throw for an exception of a rank, if the check could not know.
     *
     * @param thrown the exception
     * @param rows the rows of the rank
     * @param all the rows of the whole batch
     * @return an exception with the remedy, or the same if it is about something else
     */
    static RuntimeException explained(RuntimeException thrown, long rows, long all) {
        boolean cut = rows != all;
        return String.valueOf(thrown.getMessage()).contains("more than 1 value per channel")
                ? new IllegalArgumentException(
                        "A batch normalization gets one value of a channel to train on, of the rows"
                                + (cut ? " of its rank, " : " of the batch, ")
                                + rows
                                + ": "
                                + thrown.getMessage()
                                + ". "
                                + remedy(cut, all),
                        thrown)
                : thrown;
    }
}
