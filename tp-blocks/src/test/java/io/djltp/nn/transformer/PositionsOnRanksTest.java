package io.djltp.nn.transformer;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.layout.ParallelMode;
import io.djltp.nn.SequenceGather;
import io.djltp.nn.SequenceScatter;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.testing.BlockTraining;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.function.Supplier;

/** Positions of cut tokens, and biases of the scores of cut heads, are those of the whole. */
public class PositionsOnRanksTest {

    private static final int WIDTH = 10;
    private static final int TOKENS = 7;
    private static final int HEADS = 5;

    /** Attention with a bias for each head and distance, learned or not. */
    private static final class Biased extends AbstractBlock {

        private final ParallelMultiHeadAttention attention =
                addChildBlock(
                        "attention",
                        ParallelMultiHeadAttention.builder()
                                .setEmbeddingSize(WIDTH)
                                .setHeads(HEADS)
                                .optBias(false)
                                .optCausal(true)
                                .build());
        private final Parameter bias;
        private final boolean learned;

        Biased(boolean learned) {
            this.learned = learned;
            bias =
                    addParameter(
                            Parameter.builder()
                                    .setName("bias")
                                    .setType(Parameter.Type.WEIGHT)
                                    .optShape(new Shape(1, HEADS, TOKENS, TOKENS))
                                    .build());
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList in,
                boolean training,
                PairList<String, Object> params) {
            NDArray x = in.head();
            NDArray own = store.getValue(bias, x.getDevice(), training);
            NDArray added = x.getManager().zeros(own.getShape()).add(own); // of the pass's manager
            return attention.forward(
                    store, new NDList(x, learned ? added : added.stopGradient()), training);
        }

        @Override
        protected void initializeChildBlocks(
                NDManager manager, ai.djl.ndarray.types.DataType type, Shape... shapes) {
            attention.initialize(manager, type, shapes);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] shapes) {
            return shapes;
        }
    }

    @DataProvider
    public Object[][] networks() {
        return new Object[][] {
            {(Supplier<Block>) () -> cut(new SinusoidalPositions())},
            {(Supplier<Block>) () -> cut(new PositionEmbedding(TOKENS + 1))},
            {(Supplier<Block>) () -> sequence(linear(WIDTH), new Biased(true), linear(3))},
        };
    }

    private static Block cut(Block positions) {
        return sequence(
                linear(WIDTH), new SequenceScatter(), positions, linear(3), new SequenceGather());
    }

    @Test(dataProvider = "networks", timeOut = 60_000)
    public void isEqual(Supplier<Block> network) {
        Network.Batches batches =
                (manager, step) ->
                        new NDList[] {
                            new NDList(TrainingRun.random(manager, step, 4, TOKENS, 6)),
                            new NDList(TrainingRun.random(manager, 40 + step, 4, TOKENS, 3))
                        };
        new BlockTraining(network, batches, null)
                .assertEqual(
                        new TrainerKind(ParallelMode.TENSOR, 1),
                        new TrainerKind(ParallelMode.TENSOR, 2),
                        new TrainerKind(ParallelMode.TENSOR, 3),
                        TrainerKind.mesh(2, 2));
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
                        (manager, step) ->
                                new NDList[] {
                                    new NDList(TrainingRun.random(manager, step, 4, TOKENS, 6)),
                                    new NDList(TrainingRun.random(manager, 40, 4, TOKENS, 3))
                                })
                .assertRefused(
                        new TrainerKind(ParallelMode.TENSOR, 2), "slice", "optGatherOutput(true)");
    }
}
