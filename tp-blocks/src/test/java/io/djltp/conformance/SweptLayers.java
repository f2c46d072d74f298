package io.djltp.conformance;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.newColumn;
import static io.djltp.testing.Blocks.newRow;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;

import io.djltp.cut.Cut;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.sharding.ShardingStrategy;

import java.util.List;
import java.util.function.Function;

/** Column, activation, row, in balanced ranges or in lengths of the user's choice. */
record SweptLayers(
        long hidden,
        long outputs,
        boolean bias,
        boolean gathered,
        int activation,
        Cut chosen,
        Layout in,
        Layout out)
        implements SweptPart {

    private static final List<Function<NDArray, NDArray>> ACTIVATIONS =
            List.of(Activation::relu, Activation::tanh, Activation::sigmoid, Activation::gelu);

    static SweptLayers draw(Draws draws, Layout layout, long inputs) {
        return draw(draws, layout, layout);
    }

    /** Draws layers between two layouts: rows that are cut may be whole behind them. */
    static SweptLayers draw(Draws draws, Layout in, Layout out) {
        int hidden = draws.cutLength(12);
        return new SweptLayers(
                hidden,
                draws.between(1, 9),
                draws.coin(),
                in == Layout.WHOLE && draws.between(0, 3) == 0,
                draws.between(0, ACTIVATIONS.size() - 1),
                draws.cut(hidden),
                in,
                out);
    }

    @Override
    public Block create(boolean cut) {
        return sequence(
                cut ? column() : linear(hidden, bias),
                LambdaBlock.singleton(ACTIVATIONS.get(activation)),
                cut ? row() : linear(outputs, bias));
    }

    private Block column() {
        ColumnParallelLinear.Builder column =
                newColumn(hidden)
                        .optBias(bias)
                        .optBatchShardedInput(in == Layout.ROWS_CUT)
                        .optSequenceParallel(in == Layout.TOKENS_CUT)
                        .optGatherOutput(gathered);
        if (chosen != null) {
            column.optShardingStrategy(ShardingStrategy.rowwise(chosen));
        }
        return column.build();
    }

    private Block row() {
        RowParallelLinear.Builder row =
                newRow(outputs)
                        .optBias(bias)
                        .optBatchShardedOutput(out == Layout.ROWS_CUT)
                        .optSequenceParallel(out == Layout.TOKENS_CUT)
                        .optInputIsParallel(!gathered);
        if (chosen != null) {
            row.optShardingStrategy(ShardingStrategy.columnwise(chosen));
        }
        return row.build();
    }
}
