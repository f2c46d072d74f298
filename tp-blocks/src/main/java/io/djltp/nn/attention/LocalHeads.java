package io.djltp.nn.attention;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;

import java.util.ArrayList;
import java.util.List;

/**
 * The heads of one rank: consecutive query heads, and the key/value heads that these use. Query
 * head h of H uses key/value head floor(h Hkv / H), so that the first and the last key/value head
 * of a rank may have fewer query heads there than those between.
 *
 * @param queries the number of query heads
 * @param shares for each key/value head of the rank, how many of its query heads use it
 */
record LocalHeads(int queries, List<Integer> shares) {

    /**
     * Returns the heads of a rank.
     *
     * @param heads which query heads each rank has
     * @param keyValues the number of key/value heads over all ranks
     * @param rank the rank
     */
    static LocalHeads of(Cut heads, int keyValues, int rank) {
        long sharing = heads.getLength() / keyValues;
        ShardRange own = heads.getRange(rank);
        List<Integer> shares = new ArrayList<>();
        for (long at = own.start(); at < own.end(); ) {
            long end = Math.min(own.end(), (at / sharing + 1) * sharing);
            shares.add(Math.toIntExact(end - at));
            at = end;
        }
        return new LocalHeads(Math.toIntExact(own.length()), List.copyOf(shares));
    }

    /** Returns the number of key/value heads. */
    int keyValues() {
        return shares.size();
    }

    /**
     * Gives each query head its key or value head.
     *
     * @param keyValues keys or values, [B, S, key/value heads, d]
     * @return the same, [B, S, query heads, d]; a view where one head is enough for all
     */
    NDArray expand(NDArray keyValues) {
        if (queries == keyValues()) {
            return keyValues;
        }
        Shape shape = keyValues.getShape();
        boolean even = shares.stream().distinct().count() == 1;
        if (even) {
            int share = shares.get(0);
            NDArray wide =
                    keyValues
                            .expandDims(3)
                            .broadcast(
                                    shape.get(0), shape.get(1), shares.size(), share, shape.get(3));
            return wide.reshape(shape.get(0), shape.get(1), queries, shape.get(3));
        }
        NDList parts = new NDList();
        for (int i = 0; i < shares.size(); i++) {
            NDArray head = keyValues.get(new NDIndex().addAllDim(2).addSliceDim(i, i + 1));
            parts.add(head.broadcast(shape.get(0), shape.get(1), shares.get(i), shape.get(3)));
        }
        return NDArrays.concat(parts, 2);
    }
}
