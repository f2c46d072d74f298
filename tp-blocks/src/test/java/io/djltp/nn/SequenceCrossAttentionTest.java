package io.djltp.nn;

import static io.djltp.testing.Blocks.attention;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.mlp;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.transformer.ParallelTransformerDecoderLayer;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.testing.Unchecked;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;

/**
 * Cut tokens where they were not tried: a decoder layer that attends to a memory, whose tokens are
 * cut too; and a saved model with the borders of the region in it.
 */
public class SequenceCrossAttentionTest {

    private static final int WIDTH = 6;
    private static final int TOKENS = 7;

    @DataProvider
    public Object[][] kinds() {
        return new Object[][] {
            {TENSOR_1}, {TENSOR_2}, {TENSOR_3}, {MESH_2X2},
        };
    }

    /** x and memory, each through a layer of its own, into the region, the decoder layer, out. */
    private static final class Decoder extends AbstractBlock {

        private final Block before = addChildBlock("before", linear(WIDTH));
        private final Block memory = addChildBlock("memory", linear(WIDTH));
        private final Block in = addChildBlock("in", new SequenceScatter());
        private final Block memoryIn = addChildBlock("memoryIn", new SequenceScatter());
        private final Block layer;
        private final Block out = addChildBlock("out", new SequenceGather());

        Decoder(boolean cut) {
            layer = addChildBlock("layer", layer(cut));
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store, NDList in, boolean training, PairList<String, Object> p) {
            NDArray x = call(this.in, store, call(before, store, in.get(0), training), training);
            NDArray m = call(memoryIn, store, call(memory, store, in.get(1), training), training);
            NDList y = layer.forward(store, new NDList(x, m), training);
            return out.forward(store, y, training);
        }

        private static NDArray call(Block block, ParameterStore store, NDArray x, boolean train) {
            return block.forward(store, new NDList(x), train).singletonOrThrow();
        }

        @Override
        protected void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
            before.initialize(manager, type, shapes[0]);
            memory.initialize(manager, type, shapes[1]);
            Shape x = new Shape(shapes[0].get(0), shapes[0].get(1), WIDTH);
            Shape m = new Shape(shapes[1].get(0), shapes[1].get(1), WIDTH);
            in.initialize(manager, type, x);
            memoryIn.initialize(manager, type, m);
            layer.initialize(manager, type, x, m);
            out.initialize(manager, type, x);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] shapes) {
            return new Shape[] {new Shape(shapes[0].get(0), shapes[0].get(1), WIDTH)};
        }
    }

    private static Block layer(boolean cut) {
        return ParallelTransformerDecoderLayer.builder()
                .setAttention(heads(cut).optCausal(true).build())
                .optCrossAttention(heads(cut).optCrossAttention(true).build())
                .setMlp(mlp(WIDTH, 5).optSequenceParallel(cut).build())
                .setNorm(() -> LayerNorm.builder().axis(2).build())
                .optPreNorm(true)
                .build();
    }

    private static ParallelMultiHeadAttention.Builder heads(boolean cut) {
        return attention(WIDTH, 3)
                .optHeadDim(4)
                .optBias(false) // of which that of keys has no gradient
                .optSequenceParallel(cut);
    }

    @Test(timeOut = 240_000)
    public void aMemoryWhoseTokensAreCut() {
        Network.of(
                        Decoder::new,
                        HalfSquareLoss::new,
                        Network.batches("4x7x3 4x5x2", "4x7x" + WIDTH))
                .assertEqual(kinds());
    }

    private static Block body(boolean cut) {
        return sequence(SequenceParallelTest.body(cut, true, 2), linear(3));
    }

    /** While ranks hold the weights; the file is that of the network of plain DJL blocks. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void isReadBackIntoThePlainNetwork(TrainerKind kind) throws Exception {
        ByteArrayOutputStream file = new ByteArrayOutputStream();
        TrainingRun expected = train(PLAIN, false, new ByteArrayOutputStream());
        train(kind, true, file);
        try (NDManager manager = NDManager.newBaseManager()) {
            Block plain = body(false);
            plain.loadParameters(
                    manager, new DataInputStream(new ByteArrayInputStream(file.toByteArray())));
            ArrayAssert.assertAllClose(
                    TrainingRun.weights(plain), expected.getWeights(), 1e-5, "parameter");
        }
    }

    private static TrainingRun train(TrainerKind kind, boolean cut, ByteArrayOutputStream file) {
        long[] shape = {4, TOKENS, SequenceParallelTest.WIDTH};
        return TrainingRun.of(
                kind,
                body(cut),
                new HalfSquareLoss(),
                new Shape(shape),
                (trainer, manager, numbers) -> {
                    for (int step = 0; step < 3; step++) {
                        NDArray x = TrainingRun.random(manager, step, shape);
                        NDArray labels = TrainingRun.random(manager, 50 + step, 4, TOKENS, 3);
                        TrainingRun.step(trainer, x, labels);
                    }
                    Unchecked.run(
                            () ->
                                    trainer.getModel()
                                            .getBlock()
                                            .saveParameters(new DataOutputStream(file)));
                });
    }
}
