package io.djltp.conformance;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;

import io.djltp.cut.Cut;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.sharding.ShardingStrategy;

import java.util.List;
import java.util.SplittableRandom;
import java.util.function.Function;

/** Column, activation, row, in balanced ranges or in lengths of the user's choice. */
record SweptLayers(
        long inputs,
        long hidden,
        long outputs,
        boolean bias,
        boolean gathered,
        boolean behindLinear,
        int activation,
        Cut chosen)
        implements SweptNetwork {

    private static final List<Function<NDArray, NDArray>> ACTIVATIONS =
            List.of(Activation::relu, Activation::tanh, Activation::sigmoid, Activation::gelu);

    static SweptLayers draw(SplittableRandom random, int ranks) {
        int hidden = SweptNetwork.draw(random, ranks, ranks + 12);
        return new SweptLayers(
                SweptNetwork.draw(random, ranks, ranks + 5),
                hidden,
                SweptNetwork.draw(random, 1, 9),
                random.nextBoolean(),
                random.nextInt(4) == 0,
                random.nextBoolean(),
                random.nextInt(ACTIVATIONS.size()),
                random.nextBoolean() && ranks > 1
                        ? SweptNetwork.drawCut(random, hidden, ranks)
                        : null);
    }

    @Override
    public Block create(boolean cut) {
        SequentialBlock block = new SequentialBlock();
        if (behindLinear) {
            block.add(Linear.builder().setUnits(inputs).build());
        }
        block.add(cut ? column() : Linear.builder().setUnits(hidden).optBias(bias).build());
        block.add(LambdaBlock.singleton(ACTIVATIONS.get(activation)));
        return block.add(cut ? row() : Linear.builder().setUnits(outputs).optBias(bias).build());
    }

    private Block column() {
        ColumnParallelLinear.Builder column =
                ColumnParallelLinear.builder()
                        .setUnits(hidden)
                        .optBias(bias)
                        .optGatherOutput(gathered);
        if (chosen != null) {
            column.optShardingStrategy(ShardingStrategy.rowwise(chosen));
        }
        return column.build();
    }

    private Block row() {
        RowParallelLinear.Builder row =
                RowParallelLinear.builder()
                        .setUnits(outputs)
                        .optBias(bias)
                        .optInputIsParallel(!gathered);
        if (chosen != null) {
            row.optShardingStrategy(ShardingStrategy.columnwise(chosen));
        }
        return row.build();
    }
}
