package io.djltp.nn.attention;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;

import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;
import io.djltp.internal.layout.Region.Features;
import io.djltp.internal.rank.LateRefusal;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.HostReads;

import org.jspecify.annotations.Nullable;

/**
 * Which keys each query sees.
 *
 * <p>What is not seen gets a score so low that its weight is exactly 0, but a finite one: a query
 * that sees no key at all has no softmax, and its result is set to 0 afterwards. So neither it nor
 * its gradients are ever NaN.
 */
final class AttentionMask {

    private static final float LOWEST = -1e9f;
    private static final float LOWEST_HALF = -3e4f; // of float16, whose smallest number is -65504

    private final boolean causal;
    private final @Nullable NDArray
            bias; // [1 or B, 1 or heads, 1 or T, S], or null: all keys, or the causal ones
    private final @Nullable NDArray
            seeing; // 1 where a query sees a key, [1 or B, 1 or heads, 1 or T, 1], or null: all do

    private AttentionMask(boolean causal, @Nullable NDArray bias, @Nullable NDArray seeing) {
        this.causal = causal;
        this.bias = bias;
        this.seeing = seeing;
    }

    /** Returns whether an input is added to the scores, and not a mask. */
    private static boolean isBias(NDArray input) {
        return input.getShape().dimension() == 4;
    }

    /**
     * Replaces a bias of all heads by that of the rank's heads. A bias is what the user adds to the
     * scores of queries and keys, such as -m_h |t - s| (ALiBi: Press et al., 2021, <a
     * href="https://arxiv.org/abs/2108.12409">arXiv:2108.12409</a>) or a learned number for each
     * distance: a floating point array of four axes.
     *
     * @param context the rank, or {@code null}
     * @param user the block
     * @param shape the heads
     * @param others masks and biases, the same on all ranks
     * @return the same for the rank
     */
    static NDList ofRank(
            @Nullable ParallelContext context, Block user, AttentionShape shape, NDList others) {
        NDList own = new NDList();
        for (NDArray other : others) {
            own.add(isBias(other) ? ofRank(context, user, shape, other) : other);
        }
        return own;
    }

    private static NDArray ofRank(
            @Nullable ParallelContext context, Block user, AttentionShape shape, NDArray bias) {
        long heads = bias.getShape().get(1);
        if (heads != 1 && heads != shape.heads() || !bias.getDataType().isFloating()) {
            throw Errors.argument(
                    "What is added to the scores of attention must be floating point numbers of"
                            + " shape (1 or B, 1 or %s heads, 1 or T, S), over all ranks, but is"
                            + " %s %s",
                    shape.heads(), bias.getShape(), bias.getDataType());
        }
        int ranks = AttentionShape.ranks(context);
        if (context == null || ranks == 1) {
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
    private static void checkBias(Shape bias, Shape query, long keys) {
        boolean fits =
                (bias.get(0) == 1 || bias.get(0) == query.get(0))
                        && (bias.get(2) == 1 || bias.get(2) == query.get(2))
                        && bias.get(3) == keys;
        if (!fits) {
            throw Errors.argument(
                    "An attention mask must be of shape (B, S) or (B, T, S), or, as numbers that"
                            + " are added to the scores, of shape (1 or %s, 1 or the heads, 1 or"
                            + " %s, %s), but is %s",
                    query.get(0), query.get(2), keys, bias);
        }
    }

    /**
     * Makes the mask of a pass.
     *
     * @param given what the user gave: a mask [B, S] or [B, T, S], not 0 where a key is seen, and
     *     what is added to the scores, [1 or B, 1 or heads, 1 or T, S]; each may be missing
     * @param causal whether position t sees the positions 0 to t only
     * @param window of these, how many it sees at most, or 0: all
     * @param query the queries, [B, heads, T, d]
     * @param keys the number S of keys
     * @throws IllegalArgumentException if the mask has another shape
     */
    static AttentionMask of(NDList given, boolean causal, int window, NDArray query, long keys) {
        boolean slides = window > 0 && window < keys;
        DataType type = query.getDataType();
        float lowest = type == DataType.FLOAT16 ? LOWEST_HALF : LOWEST;
        long positions = query.getShape().get(2);
        NDArray seen = null;
        NDArray added = null;
        if (slides) {
            NDArray own = past(query.getManager(), positions, keys, window);
            seen = own.reshape(1, 1, positions, keys);
        }
        for (NDArray each : given) {
            NDArray seenHere;
            if (isBias(each)) {
                checkBias(each.getShape(), query.getShape(), keys);
                added = each.toType(type, false);
                seenHere = each.gt(lowest); // -infinity is a way to say that it is not seen
            } else {
                seenHere = seen(each, query, keys);
            }
            seen = seen == null ? seenHere : seen.logicalAnd(seenHere);
        }
        if (seen == null) {
            return new AttentionMask(causal, null, null);
        }
        if (causal && !slides) {
            seen = seen.logicalAnd(past(seen.getManager(), positions, keys, 0));
        }
        NDArray number = seen.toType(type, false);
        NDArray bias = seen.logicalNot().toType(type, false).mul(lowest);
        if (added != null) {
            bias = added.add(bias).maximum(lowest);
        }
        return new AttentionMask(causal, bias, number.max(new int[] {3}, true));
    }

    /** Returns which keys a query sees, as numbers, not a part of the graph: without gradient. */
    private static NDArray seen(NDArray mask, NDArray query, long keys) {
        long batch = query.getShape().get(0);
        long positions = query.getShape().get(2);
        Shape shape = mask.getShape();
        boolean padding = shape.equals(new Shape(batch, keys));
        if (!padding && !shape.equals(new Shape(batch, positions, keys))) {
            throw Errors.argument(
                    "An attention mask must be of shape %s, a number for each key, or %s, one for"
                            + " each query and key (1: it is seen, 0: it is not), but is %s",
                    new Shape(batch, keys), new Shape(batch, positions, keys), shape);
        }
        NDArray seen = mask.getDataType() == DataType.BOOLEAN ? mask : mask.neq(0);
        return seen.reshape(batch, 1, padding ? 1 : positions, keys);
    }

    /**
     * Checks that a mask of floating point numbers has 0 and 1 only: others are likely to be meant
     * as numbers that are added to the scores. A GPU is not waited for: there it checks nothing.
     *
     * @param context the rank, or {@code null}
     * @param mask what the user gave
     * @throws IllegalArgumentException at once if all ranks have the mask, at the end of the pass
     *     if this one has some of its rows
     */
    static void check(@Nullable ParallelContext context, NDArray mask) {
        if (isBias(mask) || !mask.getDataType().isFloating() || mask.getDevice().isGpu()) {
            return;
        }
        for (float number : HostReads.floats(mask.toType(DataType.FLOAT32, false))) {
            if (number != 0 && number != 1) {
                IllegalArgumentException e =
                        new IllegalArgumentException(
                                "An attention mask of shape "
                                        + mask.getShape()
                                        + " has the number "
                                        + number
                                        + ", and not only 1 where a key is seen and 0 where it is"
                                        + " not: give what is added to the scores as (1 or B, 1 or"
                                        + " the heads, 1 or T, S)");
                if (context == null || !context.getPass().regionOf(mask).isRowsCut()) {
                    throw e;
                }
                LateRefusal.refuse(context, e);
                return;
            }
        }
    }

    /** Returns which keys are not after a query, and not before its window, [T, S]. */
    private static NDArray past(NDManager manager, long positions, long keys, int window) {
        NDArray rows = manager.arange(0, positions, 1, DataType.INT64).reshape(positions, 1);
        NDArray columns = manager.arange(0, keys, 1, DataType.INT64).reshape(1, keys);
        NDArray past = rows.gte(columns);
        return window == 0 ? past : past.logicalAnd(rows.sub(window).lt(columns));
    }

    /** Returns whether a query sees the keys up to its own position, and {@link #bias} is null. */
    boolean isCausalOnly() {
        return causal && bias == null;
    }

    /** Returns what is added to the scores, or {@code null}. */
    @Nullable NDArray bias() {
        return bias;
    }

    /**
     * Returns what is added to the scores, also where {@link #isCausalOnly()}.
     *
     * @param scores the scores, [B, H, T, S]
     */
    NDArray addTo(NDArray scores) {
        if (bias != null) {
            return scores.add(bias);
        }
        if (!causal) {
            return scores;
        }
        Shape shape = scores.getShape();
        NDArray later = past(scores.getManager(), shape.get(2), shape.get(3), 0).logicalNot();
        float lowest = scores.getDataType() == DataType.FLOAT16 ? LOWEST_HALF : LOWEST;
        return scores.add(later.toType(scores.getDataType(), false).mul(lowest));
    }

    /**
     * Sets the result of queries to 0 that see no key.
     *
     * @param values the weighted values, [B, H, T, d]
     */
    NDArray clear(NDArray values) {
        return seeing == null ? values : values.mul(seeing);
    }
}
