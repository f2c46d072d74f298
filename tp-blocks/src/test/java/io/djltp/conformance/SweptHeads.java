package io.djltp.conformance;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.newColumn;
import static io.djltp.testing.Blocks.newRow;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.sharding.AxisPart;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.GraphBlock;

/**
 * Stacked queries, keys and values, of which query heads share keys and values, and an output
 * projection that is cut by heads: without a softmax, {@code q * tanh(k) + v} of each head.
 */
record SweptHeads(
        Shape input,
        int heads,
        int keyHeads,
        int dim,
        Shape mixed,
        long outputs,
        boolean bias,
        Cut chosen)
        implements SweptPart {

    static SweptHeads draw(Draws draws, Layout layout, long inputs) {
        int ranks = draws.ranks();
        int keys = draws.between(1, 4);
        int heads = keys * draws.between((ranks + keys - 1) / keys, ranks / keys + 2);
        int dim = draws.between(1, 4);
        return new SweptHeads(
                draws.row(inputs),
                heads,
                keys,
                dim,
                draws.row((long) heads * dim),
                draws.between(1, 6),
                draws.coin(),
                draws.cut(heads));
    }

    private AxisPart queries() {
        return chosen == null ? AxisPart.heads(heads, dim) : AxisPart.heads(chosen, dim);
    }

    private AxisPart keys() {
        return chosen == null
                ? AxisPart.keyValueHeads(heads, keyHeads, dim)
                : AxisPart.keyValueHeads(chosen, keyHeads, dim);
    }

    @Override
    public Block create(boolean cut) {
        long units = queries().getLength() + 2 * keys().getLength();
        GraphBlock block =
                new GraphBlock(
                        mixed,
                        (call, in) -> {
                            NDArray y = call.call("qkv", in.head());
                            return new NDList(mix(cut ? call.context() : null, y));
                        });
        block.add(
                "qkv",
                cut
                        ? newColumn(units)
                                .optBias(bias)
                                .optShardingStrategy(
                                        ShardingStrategy.segmented(0, queries(), keys(), keys()))
                                .build()
                        : linear(units, bias),
                input.getShape());
        Block output =
                cut
                        ? newRow(outputs)
                                .optBias(bias)
                                .optShardingStrategy(ShardingStrategy.segmented(1, queries()))
                                .build()
                        : linear(outputs, bias);
        return sequence(block, output);
    }

    private NDArray mix(ParallelContext context, NDArray y) {
        long keys = queries().getLength();
        int last = y.getShape().dimension() - 1;
        NDList parts = y.split(new long[] {keys, keys + keys().getLength()}, last);
        NDArray q = parts.get(0);
        NDArray k = parts.get(1);
        NDArray v = parts.get(2);
        ShardRange own = new ShardRange(0, (long) heads * dim);
        long firstKey = 0;
        if (context != null && context.getTensorGroup().getSize() > 1) {
            int rank = context.getTensorGroup().getRank();
            int ranks = context.getTensorGroup().getSize();
            Cut keyCut = keys().cut(ranks);
            k = context.getPass().takeSlice(k, keyCut, rank, "SweptHeads");
            v = context.getPass().takeSlice(v, keyCut, rank, "SweptHeads");
            own = queries().cut(ranks).getRange(rank);
            firstKey = keyCut.getRange(rank).start() / dim;
        }
        return q.mul(ofQueries(k, own, firstKey).tanh()).add(ofQueries(v, own, firstKey));
    }

    /** Repeats keys or values for the query heads that use them. */
    private NDArray ofQueries(NDArray keys, ShardRange own, long firstKey) {
        NDList repeated = new NDList();
        for (long head = own.start() / dim; head < own.end() / dim; head++) {
            long at = (head / (heads / keyHeads) - firstKey) * dim;
            repeated.add(keys.get("..., " + at + ":" + (at + dim)));
        }
        return repeated.size() == 1 ? repeated.head() : NDArrays.concat(repeated, -1);
    }
}
