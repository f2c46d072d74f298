package io.djltp.nn.attention;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.TorchOperations;
import io.djltp.sharding.AxisPart;
import io.djltp.sharding.ShardingStrategy;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.List;

/**
 * The heads of attention.
 *
 * @param embedding the features of the output
 * @param heads the number H of query heads
 * @param keyValueHeads the number of key/value heads, which divides H
 * @param headDim the features d of a head
 */
record AttentionShape(long embedding, int heads, int keyValueHeads, long headDim) {

    /**
     * Checks the numbers of a builder.
     *
     * @param embedding the features of the output
     * @param heads the number of query heads
     * @param keyValueHeads the number of key/value heads, 0 for as many
     * @param headDim the features of a head, 0 for embedding / heads
     */
    static AttentionShape of(long embedding, int heads, int keyValueHeads, long headDim) {
        Errors.check(heads > 0, "Attention needs 1 head or more, setHeads, not %s", heads);
        Errors.check(
                embedding > 0,
                "Attention needs an embedding of 1 feature or more, setEmbeddingSize, not %s",
                embedding);
        int groups = keyValueHeads == 0 ? heads : keyValueHeads;
        Errors.check(
                groups > 0 && heads % groups == 0,
                "%s query heads cannot share %s key/value heads: optKeyValueHeads needs a divisor"
                        + " of the heads",
                heads,
                groups);
        Errors.check(
                headDim > 0 || headDim == 0 && embedding % heads == 0,
                "%s heads do not divide an embedding of %s features: give the features of a head"
                        + " by optHeadDim",
                heads,
                embedding);
        return new AttentionShape(
                embedding, heads, groups, headDim == 0 ? embedding / heads : headDim);
    }

    /** Returns which query heads each rank has. */
    Cut headCut(int ranks) {
        return AxisPart.heads(heads, 1).cut(ranks);
    }

    /** Returns how the features of all query heads are cut. */
    Cut featureCut(int ranks) {
        return AxisPart.heads(heads, headDim).cut(ranks);
    }

    /** Returns how the weight of the output projection is cut. */
    ShardingStrategy outputStrategy() {
        return ShardingStrategy.headAwareColumnwise(heads, headDim);
    }

    /** Returns the heads of a rank; all of them where they are not cut. */
    LocalHeads localHeads(@Nullable ParallelContext context) {
        int ranks = ranks(context);
        int rank = context == null ? 0 : context.getTensorGroup().getRank();
        return LocalHeads.of(headCut(ranks), keyValueHeads, rank);
    }

    /** Returns over how many ranks heads are cut. */
    static int ranks(@Nullable ParallelContext context) {
        return context == null ? 1 : context.getTensorGroup().getSize();
    }

    /**
     * The heads of one rank: consecutive query heads, and the key/value heads that these use. Query
     * head h of H uses key/value head floor(h Hkv / H), so that the first and the last key/value
     * head of a rank may have fewer query heads there than those between.
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
                                        shape.get(0),
                                        shape.get(1),
                                        shares.size(),
                                        share,
                                        shape.get(3));
                return wide.reshape(shape.get(0), shape.get(1), queries, shape.get(3));
            }
            NDList parts = new NDList();
            for (int i = 0; i < shares.size(); i++) {
                NDArray head = keyValues.get(new NDIndex().addAllDim(2).addSliceDim(i, i + 1));
                parts.add(head.broadcast(shape.get(0), shape.get(1), shares.get(i), shape.get(3)));
            }
            return TorchOperations.concat(parts, 2);
        }
    }
}
