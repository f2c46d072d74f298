package io.djltp.nn.attention;

import ai.djl.util.Preconditions;

import io.djltp.cut.Cut;
import io.djltp.rank.ParallelContext;
import io.djltp.sharding.AxisPart;
import io.djltp.sharding.ShardingStrategy;

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
        Preconditions.checkArgument(
                heads > 0, "Attention needs 1 head or more, setHeads, not " + heads);
        Preconditions.checkArgument(
                embedding > 0,
                "Attention needs an embedding of 1 feature or more, setEmbeddingSize, not "
                        + embedding);
        int groups = keyValueHeads == 0 ? heads : keyValueHeads;
        Preconditions.checkArgument(
                groups > 0 && heads % groups == 0,
                heads
                        + " query heads cannot share "
                        + groups
                        + " key/value heads: optKeyValueHeads needs a divisor of the heads");
        Preconditions.checkArgument(
                headDim > 0 || headDim == 0 && embedding % heads == 0,
                heads
                        + " heads do not divide an embedding of "
                        + embedding
                        + " features: give the features of a head by optHeadDim");
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
    LocalHeads localHeads(ParallelContext context) {
        int ranks = ranks(context);
        int rank = ranks == 1 ? 0 : context.getTensorGroup().getRank();
        return LocalHeads.of(headCut(ranks), keyValueHeads, rank);
    }

    /** Returns over how many ranks heads are cut. */
    static int ranks(ParallelContext context) {
        return context == null ? 1 : context.getTensorGroup().getSize();
    }
}
