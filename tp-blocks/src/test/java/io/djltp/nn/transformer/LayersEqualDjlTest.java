package io.djltp.nn.transformer;

import static io.djltp.testing.Blocks.attention;
import static io.djltp.testing.Blocks.mlp;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;

import ai.djl.ndarray.NDList;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.norm.LayerNorm;

import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.attention.RotaryEmbedding;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.testing.BlockTraining;
import io.djltp.testing.Network;
import io.djltp.testing.Surrounded;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;
import java.util.function.Supplier;

/** Layers of transformers over ranks are the unsharded ones under DJL's own trainer. */
public class LayersEqualDjlTest {

    private static final int BATCH = 4;
    private static final int LENGTH = 4;
    private static final int MEMORY = 3;
    private static final int WIDTH = 12;

    private static Object[] row(
            String name, Supplier<Block> block, int inputs, String forward, String backward) {
        return new Object[] {name, block, inputs, forward, backward};
    }

    @DataProvider
    public Object[][] layers() {
        return new Object[][] {
            row(
                    "BERT",
                    () -> ParallelTransformerEncoderLayer.bert(WIDTH, 6, 10, 0),
                    2,
                    "2 all-reduce",
                    "2 all-reduce"),
            row("Llama", LayersEqualDjlTest::llama, 1, "2 all-reduce", "2 all-reduce"),
            row(
                    "two layers of Llama",
                    () ->
                            new ParallelTransformer(
                                    List.of(llama(), llama()), RmsNorm.builder().build()),
                    1,
                    "4 all-reduce",
                    "4 all-reduce"),
            row(
                    "decoder with cross-attention",
                    () -> decoder(0),
                    4,
                    "3 all-reduce",
                    "4 all-reduce"), // one of the memory
        };
    }

    private static Block llama() {
        RotaryEmbedding rotary = RotaryEmbedding.builder().optBase(100).build();
        return ParallelTransformerDecoderLayer.llama(WIDTH, 6, 2, 7, rotary, 1e-5f);
    }

    private static Block decoder(float dropout) {
        return ParallelTransformerDecoderLayer.builder()
                .setAttention(heads(dropout).optCausal(true).optFusedQkv(true).build())
                .optCrossAttention(heads(dropout).optCrossAttention(true).build())
                .setMlp(mlp(WIDTH, 9).optActivation(Activation.geluBlock()).build())
                .setNorm(() -> LayerNorm.builder().axis(2).build())
                .optPreNorm(true)
                .optDropout(dropout)
                .build();
    }

    private static ParallelMultiHeadAttention.Builder heads(float dropout) {
        return attention(WIDTH, 4).optKeyValueHeads(2).optBias(false).optDropout(dropout);
    }

    @Test(dataProvider = "layers", timeOut = 120_000)
    public void isEqual(
            String name, Supplier<Block> layer, int inputs, String forward, String backward) {
        training(layer, inputs).assertEqual(TENSOR_1, TENSOR_2, TENSOR_3, TENSOR_4, MESH_2X2);
    }

    @Test(dataProvider = "layers", timeOut = 60_000)
    public void whatIsCommunicated(
            String name, Supplier<Block> layer, int inputs, String forward, String backward) {
        BlockTraining training = training(layer, inputs);
        training.assertCounts(TENSOR_1, "none", "none");
        training.assertCounts(TENSOR_2, forward, backward);
        training.assertCounts(TENSOR_3, forward, backward);
    }

    /** Masks follow the seed: the same on one rank as on several, of weights and of outputs. */
    @Test(timeOut = 60_000)
    public void dropoutDoesNotDependOnTheRanks() {
        training(() -> decoder(0.3f), 4)
                .assertEqualTo(TENSOR_1, TENSOR_2, TENSOR_3, DATA_2, MESH_2X2);
    }

    private static BlockTraining training(Supplier<Block> layer, int inputs) {
        return new BlockTraining(
                () -> new Surrounded(layer.get(), WIDTH, inputs == 4, 3),
                batches(inputs),
                "key_bias");
    }

    /** One input: x; two: a mask as well; four: x, memory, mask of the memory and of x. */
    private static Network.Batches batches(int inputs) {
        return (manager, step) -> {
            NDList data = new NDList(TrainingRun.random(manager, step, BATCH, LENGTH, 6));
            if (inputs == 4) {
                data.add(TrainingRun.random(manager, 20 + step, BATCH, MEMORY, 5));
                data.add(Surrounded.mask(manager, BATCH, MEMORY));
            }
            if (inputs > 1) {
                data.add(Surrounded.mask(manager, BATCH, LENGTH));
            }
            return new NDList[] {
                data, new NDList(TrainingRun.random(manager, 40 + step, BATCH, LENGTH, 3))
            };
        };
    }
}
