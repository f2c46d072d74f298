package io.djltp.sharding;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.index.NDIndex;

import io.djltp.cut.ShardRange;

import java.util.List;

/**
 * Copies between a rank's shard and the whole, across devices.
 *
 * @param axis the axis that is cut
 * @param ranges the rank's ranges of it, in the order in which they lie in the shard
 */
record ShardCopy(int axis, List<ShardRange> ranges) {

    /** Copies what lies in some rows of the whole to its places in the shard. */
    void toShard(NDArray rows, long firstRow, NDArray shard) {
        transfer(rows, firstRow, shard, true);
    }

    /** Copies what the shard has of some rows of the whole to its places in them. */
    void toRows(NDArray shard, NDArray rows, long firstRow) {
        transfer(rows, firstRow, shard, false);
    }

    private void transfer(NDArray rows, long firstRow, NDArray shard, boolean toShard) {
        long endRow = firstRow + rows.getShape().get(0);
        long at = 0; // where the range lies in the shard
        for (ShardRange range : ranges) {
            if (axis == 0) {
                long start = Math.max(range.start(), firstRow);
                long end = Math.min(range.end(), endRow);
                if (start < end) {
                    NDIndex inRows = slice(0, start - firstRow, end - firstRow);
                    NDIndex inShard =
                            slice(0, at + start - range.start(), at + end - range.start());
                    copy(rows, inRows, shard, inShard, toShard);
                }
            } else {
                NDIndex inRows = slice(axis, range.start(), range.end());
                NDIndex inShard = slice(0, firstRow, endRow);
                for (int i = 1; i < axis; i++) {
                    inShard = inShard.addAllDim();
                }
                inShard = inShard.addSliceDim(at, at + range.length());
                copy(rows, inRows, shard, inShard, toShard);
            }
            at += range.length();
        }
    }

    private static void copy(
            NDArray rows, NDIndex inRows, NDArray shard, NDIndex inShard, boolean toShard) {
        NDArray target = toShard ? shard : rows;
        try (NDArray part = toShard ? rows.get(inRows) : shard.get(inShard);
                NDArray moved = part.toDevice(target.getDevice(), false)) {
            target.set(toShard ? inShard : inRows, moved);
        }
    }

    private static NDIndex slice(int axis, long start, long end) {
        NDIndex index = new NDIndex();
        for (int i = 0; i < axis; i++) {
            index = index.addAllDim();
        }
        return index.addSliceDim(start, end);
    }
}
