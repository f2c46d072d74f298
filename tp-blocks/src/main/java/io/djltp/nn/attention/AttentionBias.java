package io.djltp.nn.attention;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;

import io.djltp.cut.ShardRange;
import io.djltp.layout.Region.Features;
import io.djltp.rank.ParallelContext;

/**
 * What the user adds to the scores of queries and keys, such as -m_h |t - s| (ALiBi: Press et al.,
 * 2021, <a href="https://arxiv.org/abs/2108.12409">arXiv:2108.12409</a>) or a learned number for
 * each distance: a floating point array of four axes. Its axis of heads is cut as the heads are.
 */
final class AttentionBias {

    private AttentionBias() {}

    /** Returns whether an input is one, and not a mask. */
    static boolean isOne(NDArray input) {
        return input.getShape().dimension() == 4;
    }

    /**
     * Replaces a bias of all heads by that of the rank's heads.
     *
     * @param context the rank, or {@code null}
     * @param user the block
     * @param shape the heads
     * @param others masks and biases, the same on all ranks
     * @return the same for the rank
     */
    static NDList ofRank(ParallelContext context, Block user, AttentionShape shape, NDList others) {
        NDList own = new NDList();
        for (NDArray other : others) {
            own.add(isOne(other) ? ofRank(context, user, shape, other) : other);
        }
        return own;
    }

    private static NDArray ofRank(
            ParallelContext context, Block user, AttentionShape shape, NDArray bias) {
        long heads = bias.getShape().get(1);
        if (heads != 1 && heads != shape.heads() || !bias.getDataType().isFloating()) {
            throw new IllegalArgumentException(
                    "What is added to the scores of attention must be floating point numbers of"
                            + " shape (1 or B, 1 or "
                            + shape.heads()
                            + " heads, 1 or T, S), over all ranks, but is "
                            + bias.getShape()
                            + " "
                            + bias.getDataType());
        }
        int ranks = AttentionShape.ranks(context);
        if (ranks == 1) {
            return bias;
        }
        // each rank's gradient of it is that of its own heads
        NDArray entered = context.getMappings(user).copyToRegion(bias);
        entered = context.getPass().enter(entered, Features.SHARD);
        if (heads == 1) {
            return entered;
        }
        ShardRange range = shape.headCut(ranks).getRange(context.getTensorGroup().getRank());
        return entered.get(new NDIndex().addAllDim().addSliceDim(range.start(), range.end()));
    }

    /** Checks the axes of batch, queries and keys. */
    static void check(Shape bias, Shape query, long keys) {
        boolean fits =
                (bias.get(0) == 1 || bias.get(0) == query.get(0))
                        && (bias.get(2) == 1 || bias.get(2) == query.get(2))
                        && bias.get(3) == keys;
        if (!fits) {
            throw new IllegalArgumentException(
                    "An attention mask must be of shape (B, S) or (B, T, S), or, as numbers that"
                            + " are added to the scores, of shape (1 or "
                            + query.get(0)
                            + ", 1 or the heads, 1 or "
                            + query.get(2)
                            + ", "
                            + keys
                            + "), but is "
                            + bias);
        }
    }
}
