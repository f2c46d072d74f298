package io.djltp.nn.transformer;

import static io.djltp.testing.Blocks.attention;
import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;

import io.djltp.nn.SequenceGather;
import io.djltp.nn.SequenceScatter;
import io.djltp.testing.BlockTraining;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.function.Supplier;

/** Positions of cut tokens, and biases of the scores of cut heads, are those of the whole. */
public class PositionsOnRanksTest {

    private static final int WIDTH = 10;
    private static final int TOKENS = 7;
    private static final Network.Batches BATCHES = Network.batches("4x7x6", "4x7x3");
    private static final int HEADS = 5;

    /** Attention with a bias for each head and distance, learned or not. */
    private static Block biased(boolean learned) {
        return new GraphBlock(
                        new Shape(TOKENS, WIDTH),
                        (call, in) -> {
                            NDArray own = call.value("bias");
                            // of the pass's manager
                            NDArray added = in.head().getManager().zeros(own.getShape()).add(own);
                            return call.list(
                                    "attention", in.head(), learned ? added : added.stopGradient());
                        })
                .add("bias", new Shape(1, HEADS, TOKENS, TOKENS))
                .add(
                        "attention",
                        attention(WIDTH, HEADS).optBias(false).optCausal(true).build(),
                        TOKENS,
                        WIDTH);
    }

    @DataProvider
    public Object[][] networks() {
        return new Object[][] {
            {(Supplier<Block>) () -> cut(new SinusoidalPositions())},
            {(Supplier<Block>) () -> cut(new PositionEmbedding(TOKENS + 1))},
            {(Supplier<Block>) () -> sequence(linear(WIDTH), biased(true), linear(3))},
        };
    }

    private static Block cut(Block positions) {
        return sequence(
                linear(WIDTH), new SequenceScatter(), positions, linear(3), new SequenceGather());
    }

    @Test(dataProvider = "networks", timeOut = 60_000)
    public void isEqual(Supplier<Block> network) {
        new BlockTraining(network, BATCHES, null)
                .assertEqual(TENSOR_1, TENSOR_2, TENSOR_3, MESH_2X2);
    }

    @DataProvider
    public Object[][] positions() {
        return new Object[][] {
            {(Supplier<Block>) SinusoidalPositions::new},
            {(Supplier<Block>) () -> new PositionEmbedding(TOKENS + 1)},
        };
    }

    /** A rank does not have the first features, whatever the length of its slice says. */
    @Test(dataProvider = "positions", timeOut = 60_000)
    public void positionsOfASliceAreRefused(Supplier<Block> positions) {
        Network.of(
                        cut ->
                                sequence(
                                        first(cut, WIDTH),
                                        map(Activation::tanh),
                                        positions.get(),
                                        row(cut, 3)),
                        HalfSquareLoss::new,
                        BATCHES)
                .assertRefused(TENSOR_2, "slice", "optGatherOutput(true)");
    }
}
