package io.djltp.conformance;

import static io.djltp.testing.Blocks.linear;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;

import io.djltp.cut.Cut;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.testing.GraphBlock;

/** The MLP of a transformer, plain or gated, against DJL's linear layers. */
record SweptMlp(
        Shape input, long hidden, Shape row, boolean gated, boolean bias, Cut chosen, Layout layout)
        implements SweptPart {

    static SweptMlp draw(Draws draws, Layout layout, long inputs) {
        int hidden = draws.cutLength(9);
        return new SweptMlp(
                draws.row(inputs),
                hidden,
                draws.row(draws.between(1, 7)),
                draws.coin(),
                draws.coin(),
                draws.cut(hidden),
                layout);
    }

    @Override
    public long outputs() {
        return row.get(row.dimension() - 1);
    }

    @Override
    public Block create(boolean cut) {
        return cut
                ? ParallelMlp.builder()
                        .setUnits(outputs())
                        .setHiddenFeatures(hidden)
                        .optGated(gated)
                        .optBias(bias)
                        .optHiddenCut(chosen)
                        .optBatchSharded(layout == Layout.ROWS_CUT)
                        .optSequenceParallel(layout == Layout.TOKENS_CUT)
                        .build()
                : plain();
    }

    private Block plain() {
        GraphBlock block =
                new GraphBlock(
                        row,
                        (call, input) -> {
                            NDArray y = call.call("up", input.head());
                            if (gated) {
                                NDList halves = y.split(2, y.getShape().dimension() - 1);
                                NDArray gate = halves.get(0);
                                y = Activation.sigmoid(gate).mul(gate).mul(halves.get(1));
                            } else {
                                y = Activation.gelu(y);
                            }
                            return new NDList(call.call("down", y));
                        });
        long rows = gated ? 2 * hidden : hidden;
        Block up = linear(rows, bias);
        Block down = linear(outputs(), bias);
        block.add("up", up, input.getShape());
        return block.add("down", down, row.slice(0, row.dimension() - 1).add(hidden).getShape());
    }
}
