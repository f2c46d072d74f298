package io.djltp.plan;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;
import ai.djl.util.Preconditions;

import io.djltp.cut.Cut;
import io.djltp.internal.layout.ShardedLayout;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.TorchOperations;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.ParallelDropout;
import io.djltp.nn.RowParallelLinear;
import io.djltp.sharding.AxisPart;
import io.djltp.sharding.ShardingStrategy;

import org.jspecify.annotations.Nullable;

/**
 * DJL's {@code ScaledDotProductAttentionBlock}, each rank with some of its heads.
 *
 * <pre>
 *   q = x Wq^T + bq,  k = x Wk^T + bk,  v = x Wv^T + bv      of the rank's heads
 *   context = dropout(softmax(q k^T / sqrt(d) + mask)) v     of each head by itself
 *   y = sum over the ranks of context Wo^T, and bo once
 * </pre>
 *
 * <p>Shapes, with h of H heads of d features on a rank, E = H d:
 *
 * <ul>
 *   <li>inputs, as DJL's: [x], [x, mask], [key, query, value] or [key, query, value, mask]; each x
 *       is [batch, length, E], the same on all ranks of the tensor group
 *   <li>mask: [batch, queries, keys] with 1 where a query may look, or four axes of summands
 *   <li>weights of key, query and value: [h d, E] of the logical [E, E], cut between heads; their
 *       biases: [h d] of [E]; weight of the result: [E, h d] of [E, E]; its bias [E] everywhere
 *   <li>output: [batch, queries, E], the same on all ranks
 * </ul>
 *
 * <p>Heads are dealt out in balanced ranges: 7 heads on 3 ranks are 3, 2 and 2. Collectives: one
 * all-reduce forward, of the result, and one backward for each array that is projected: one in
 * self-attention, whose three projections share their input's region (Megatron-LM, <a
 * href="https://arxiv.org/abs/1909.08053">arXiv:1909.08053</a>).
 *
 * <p>Children, parameters and what is saved are those of DJL's block, and under an ordinary
 * parameter store so is the computation.
 */
final class ParallelAttention extends AbstractBlock {

    private static final byte VERSION = 1; // that of DJL's block

    private final int heads;
    private final long headDim;
    private final ColumnParallelLinear key;
    private final ColumnParallelLinear query;
    private final ColumnParallelLinear value;
    private final RowParallelLinear result;
    private final ParallelDropout dropout;

    /** The four projections of an attention. */
    record Projections(
            ColumnParallelLinear key,
            ColumnParallelLinear query,
            ColumnParallelLinear value,
            RowParallelLinear result) {

        /** Makes projections without values, whose heads are cut over the ranks. */
        static Projections of(int heads, long headDim) {
            return new Projections(
                    column(heads, headDim),
                    column(heads, headDim),
                    column(heads, headDim),
                    RowParallelLinear.builder()
                            .setUnits(heads * headDim)
                            .optShardingStrategy(
                                    ShardingStrategy.headAwareColumnwise(heads, headDim))
                            .build());
        }

        private static ColumnParallelLinear column(int heads, long headDim) {
            return ColumnParallelLinear.builder()
                    .setUnits(heads * headDim)
                    .optShardingStrategy(ShardingStrategy.headAwareRowwise(heads, headDim))
                    .build();
        }
    }

    /** Creates an attention. */
    ParallelAttention(int heads, long headDim, Projections projections, ParallelDropout dropout) {
        super(VERSION);
        Preconditions.checkArgument(
                heads > 0 && headDim > 0,
                "An attention needs heads and features of a head, not " + heads + " of " + headDim);
        this.heads = heads;
        this.headDim = headDim;
        key = addChildBlock("keyProjection", projections.key());
        query = addChildBlock("queryProjection", projections.query());
        value = addChildBlock("valueProjection", projections.value());
        result = addChildBlock("resultProjection", projections.result());
        this.dropout = addChildBlock("probabilityDropout", dropout);
    }

    /** Returns the number of heads. */
    int getHeads() {
        return heads;
    }

    /** Returns the features of a head. */
    long getHeadDim() {
        return headDim;
    }

    /** Returns the dropout of the probabilities. */
    ParallelDropout getDropout() {
        return dropout;
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        boolean self = inputs.size() < 3;
        NDArray keys = key.shareInput(store, inputs.get(0));
        NDArray queries = self ? keys : share(store, query, inputs, 1, keys);
        NDArray values = self ? keys : share(store, value, inputs, 2, queries);
        NDArray mask = inputs.size() % 2 == 0 ? inputs.get(inputs.size() - 1) : null;
        NDArray k = key.computeForBlock(store, keys, training, describe());
        NDArray q = query.computeForBlock(store, queries, training, describe());
        NDArray v = value.computeForBlock(store, values, training, describe());
        ParallelContext context = RankParameterStore.contextOf(store);
        boolean cut = context != null && context.getTensorGroup().getSize() > 1;
        ParallelContext ranks = cut ? context : null;
        NDArray[] kqvm = {k, q, v, mask};
        NDArray joined = attend(store, kqvm, ranks, training);
        if (ranks != null) {
            ShardedLayout layout = new ShardedLayout(cutOf(ranks, headDim));
            joined = ranks.getPass().enterSlice(joined, layout, describe());
        }
        return result.forward(store, new NDList(joined), training);
    }

    /** Takes an input into the region of the heads, once for two projections of the same one. */
    private static NDArray share(
            ParameterStore store,
            ColumnParallelLinear layer,
            NDList inputs,
            int i,
            NDArray before) {
        boolean same = inputs.get(i) == inputs.get(i - 1);
        return same ? before : layer.shareInput(store, inputs.get(i));
    }

    private String describe() {
        return "ParallelAttention of " + heads + " heads";
    }

    /** Returns how the ranks divide what has so many elements for each head. */
    private Cut cutOf(ParallelContext context, long elements) {
        return AxisPart.heads(heads, elements).cut(context.getTensorGroup().getSize());
    }

    /** Computes the attention of each head: [batch, queries, h d]. */
    private NDArray attend(
            ParameterStore store,
            NDArray[] kqvm,
            @Nullable ParallelContext context,
            boolean training) {
        NDArray k = toHeads(kqvm[0]);
        NDArray q = toHeads(kqvm[1]);
        NDArray v = toHeads(kqvm[2]);
        NDArray bias = kqvm[3] == null ? null : summands(kqvm[3], q.getShape(), k.getShape());
        NDArray values;
        if (training && dropout.getRate() > 0) { // which needs the probabilities themselves
            NDArray scores =
                    q.matMul(k.transpose(0, 1, 3, 2)).mul((float) (1 / Math.sqrt(headDim)));
            NDArray all = bias == null ? scores : scores.add(bias);
            values = drop(store, all.softmax(3), context).matMul(v);
        } else {
            values = TorchOperations.attention(q, k, v, bias, false);
        }
        NDArray joined = values.transpose(0, 2, 1, 3); // [batch, queries, h, d]
        Shape shape = joined.getShape();
        return joined.reshape(shape.get(0), shape.get(1), shape.get(2) * headDim);
    }

    /** Takes [batch, length, h d] to [batch, h, length, d]. */
    private NDArray toHeads(NDArray x) {
        Shape shape = x.getShape();
        long own = shape.get(2) / headDim;
        return x.reshape(shape.get(0), shape.get(1), own, headDim).transpose(0, 2, 1, 3);
    }

    /** Makes of a mask what is added to the scores: -100,000 where a query may not look. */
    private static NDArray summands(NDArray mask, Shape queries, Shape keys) {
        if (mask.getShape().dimension() == 4) {
            return mask;
        }
        return mask.reshape(queries.get(0), 1, queries.get(2), keys.get(2))
                .toType(DataType.FLOAT32, false)
                .mul(-1f)
                .add(1f)
                .mul(-100000f);
    }

    /**
     * Drops probabilities. With one row for each row of the batch, [batch, h queries keys], a
     * rank's heads are a slice of those of all, so that the mask is the same on any number of
     * ranks.
     */
    private NDArray drop(
            ParameterStore store, NDArray probabilities, @Nullable ParallelContext context) {
        Shape shape = probabilities.getShape();
        NDArray rows = probabilities.reshape(shape.get(0), -1);
        if (context != null) {
            Cut elements = cutOf(context, shape.get(2) * shape.get(3));
            context.getPass().setLayout(rows, new ShardedLayout(elements));
        }
        NDArray kept = dropout.forward(store, new NDList(rows), true).head();
        kept = context == null ? kept : context.getPass().take(kept);
        return kept.reshape(shape);
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {inputShapes[inputShapes.length < 3 ? 0 : 1]};
    }

    /** {@inheritDoc} */
    @Override
    public void initializeChildBlocks(NDManager manager, DataType dataType, Shape... inputShapes) {
        Shape projected = new Shape(-1, heads * headDim);
        for (Block child : children.values()) {
            child.initialize(manager, DataType.FLOAT32, projected); // as DJL's block does
        }
    }
}
