package io.djltp.nn.attention;

import static io.djltp.testing.Blocks.attention;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.rank.ParallelMode;
import io.djltp.testing.BlockTraining;
import io.djltp.testing.Network;
import io.djltp.testing.Surrounded;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.function.Supplier;

/** Attention over ranks is the unsharded block under DJL's own trainer. */
public class AttentionEqualsDjlTest {

    private static final int BATCH = 4;
    private static final int LENGTH = 5;
    private static final int MEMORY = 3;
    private static final int WIDTH = 12;

    /** What is given beside x. */
    private enum Inputs {
        X,
        X_MASK,
        X_PAIRS,
        X_MEMORY,
        X_MEMORY_MASK;

        boolean hasMemory() {
            return this == X_MEMORY || this == X_MEMORY_MASK;
        }
    }

    private static ParallelMultiHeadAttention.Builder heads(int heads) {
        return attention(WIDTH, heads);
    }

    private static RotaryEmbedding rotary() {
        return RotaryEmbedding.builder().optBase(100).build();
    }

    private static Object[] row(
            String name, Supplier<ParallelMultiHeadAttention.Builder> block, Inputs inputs) {
        return new Object[] {name, block, inputs};
    }

    @DataProvider
    public Object[][] blocks() {
        return new Object[][] {
            row("plain", () -> heads(4), Inputs.X),
            row("padding", () -> heads(6), Inputs.X_MASK),
            row("a mask of pairs", () -> heads(4), Inputs.X_PAIRS),
            row("causal", () -> heads(4).optCausal(true).optBias(false), Inputs.X),
            row("causal and padding", () -> heads(4).optCausal(true), Inputs.X_MASK),
            row(
                    "stacked",
                    () -> heads(4).optFusedQkv(true).optRotary(rotary()).optHeadDim(2),
                    Inputs.X),
            row(
                    "seven heads",
                    () -> heads(7).optHeadDim(4).optFusedQkv(true).optRotary(rotary()),
                    Inputs.X),
            row("two key heads", () -> heads(8).optKeyValueHeads(2).optHeadDim(4), Inputs.X),
            row(
                    "groups that ranks share unevenly",
                    () -> heads(6).optKeyValueHeads(3).optFusedQkv(true).optRotary(rotary()),
                    Inputs.X_MASK),
            row("one key head", () -> heads(4).optKeyValueHeads(1).optCausal(true), Inputs.X),
            row(
                    "normalized queries and keys",
                    () -> heads(6).optKeyValueHeads(2).optQueryKeyNorm(1e-6f).optOutputBias(false),
                    Inputs.X),
            row("cross-attention", () -> heads(4).optCrossAttention(true), Inputs.X_MEMORY),
            row(
                    "cross-attention with padding",
                    () -> heads(5).optHeadDim(3).optCrossAttention(true),
                    Inputs.X_MEMORY_MASK),
        };
    }

    @Test(dataProvider = "blocks", timeOut = 120_000)
    public void isEqual(
            String name, Supplier<ParallelMultiHeadAttention.Builder> block, Inputs inputs) {
        training(block, inputs).assertEqual(TENSOR_1, TENSOR_2, TENSOR_3, TENSOR_4, MESH_2X2);
    }

    /**
     * Of 16 ranks two have each key head: the sum of their gradients is that of the dense layer.
     */
    @Test(dataProvider = "stacked", timeOut = 120_000)
    public void thirtyTwoHeadsShareEight(boolean stacked) {
        training(
                        () ->
                                heads(32)
                                        .optKeyValueHeads(8)
                                        .optHeadDim(2)
                                        .optFusedQkv(stacked)
                                        .optBias(false),
                        Inputs.X)
                .assertEqual(
                        TENSOR_4,
                        new TrainerKind(ParallelMode.TENSOR, 8),
                        new TrainerKind(ParallelMode.TENSOR, 16));
    }

    @DataProvider
    public Object[][] stacked() {
        return new Object[][] {{false}, {true}};
    }

    @Test(dataProvider = "blocks", timeOut = 60_000)
    public void oneAllReduceForwardAndOneForEachInputBackward(
            String name, Supplier<ParallelMultiHeadAttention.Builder> block, Inputs inputs) {
        BlockTraining training = training(block, inputs);
        for (int ranks : new int[] {2, 3}) {
            training.assertCounts(
                    new TrainerKind(ParallelMode.TENSOR, ranks),
                    "1 all-reduce",
                    inputs.hasMemory() ? "2 all-reduce" : "1 all-reduce");
        }
    }

    private static BlockTraining training(
            Supplier<ParallelMultiHeadAttention.Builder> block, Inputs inputs) {
        return new BlockTraining(
                () -> new Surrounded(block.get().build(), WIDTH, inputs.hasMemory(), 3),
                batches(inputs),
                "key_bias");
    }

    private static Network.Batches batches(Inputs inputs) {
        return (manager, step) -> {
            NDList data = new NDList(TrainingRun.random(manager, step, BATCH, LENGTH, 6));
            long keys = inputs.hasMemory() ? MEMORY : LENGTH;
            if (inputs.hasMemory()) {
                data.add(TrainingRun.random(manager, 20 + step, BATCH, MEMORY, 5));
            }
            switch (inputs) {
                case X_MASK:
                case X_MEMORY_MASK: // the last row sees nothing
                    float[] seen = new float[(int) (BATCH * keys)];
                    for (int i = 0; i < seen.length - keys; i++) {
                        seen[i] = i % keys <= i / keys ? 1 : 0;
                    }
                    data.add(manager.create(seen, new Shape(BATCH, keys)));
                    break;
                case X_PAIRS:
                    data.add(
                            TrainingRun.random(manager, 30, BATCH, LENGTH, LENGTH)
                                    .gt(0)
                                    .toType(DataType.INT64, false));
                    break;
                default:
                    break;
            }
            return new NDList[] {
                data, new NDList(TrainingRun.random(manager, 40 + step, BATCH, LENGTH, 3))
            };
        };
    }
}
