package io.djltp.conformance;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;

import io.djltp.cut.Cut;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.testing.GraphBlock;

import java.util.SplittableRandom;

/** The MLP of a transformer, plain or gated, behind a layer that every rank computes. */
record SweptMlp(long inputs, long hidden, long outputs, boolean gated, boolean bias, Cut chosen)
        implements SweptNetwork {

    static SweptMlp draw(SplittableRandom random, int ranks) {
        int hidden = SweptNetwork.draw(random, ranks, ranks + 9);
        return new SweptMlp(
                SweptNetwork.draw(random, 2, 7),
                hidden,
                SweptNetwork.draw(random, 1, 7),
                random.nextBoolean(),
                random.nextBoolean(),
                random.nextBoolean() && ranks > 1
                        ? SweptNetwork.drawCut(random, hidden, ranks)
                        : null);
    }

    @Override
    public Block create(boolean cut) {
        Block mlp =
                cut
                        ? ParallelMlp.builder()
                                .setUnits(outputs)
                                .setHiddenFeatures(hidden)
                                .optGated(gated)
                                .optBias(bias)
                                .optHiddenCut(chosen)
                                .build()
                        : plain();
        return new SequentialBlock().add(Linear.builder().setUnits(inputs).build()).add(mlp);
    }

    private Block plain() {
        GraphBlock block =
                new GraphBlock(
                        new Shape(outputs),
                        (call, input) -> {
                            NDArray y = call.call("up", input.head());
                            if (gated) {
                                NDList halves = y.split(2, 1);
                                NDArray gate = halves.get(0);
                                y = Activation.sigmoid(gate).mul(gate).mul(halves.get(1));
                            } else {
                                y = Activation.gelu(y);
                            }
                            return new NDList(call.call("down", y));
                        });
        long rows = gated ? 2 * hidden : hidden;
        block.add("up", Linear.builder().setUnits(rows).optBias(bias).build(), inputs);
        return block.add("down", Linear.builder().setUnits(outputs).optBias(bias).build(), hidden);
    }
}
