package io.djltp.nn;

import static io.djltp.testing.Blocks.attention;
import static io.djltp.testing.Blocks.gelu;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.mlp;
import static io.djltp.testing.Blocks.newRow;
import static io.djltp.testing.Blocks.reshape;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.sum;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MESH_2X3;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;

import ai.djl.nn.Block;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.loss.Loss;

import io.djltp.nn.attention.RotaryEmbedding;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.nn.transformer.ParallelTransformerDecoderLayer;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.function.Function;

/**
 * A network whose tokens are cut between its tensor-parallel layers has the results of DJL's own
 * trainer: outputs, losses and every parameter after four steps with momentum.
 */
public class SequenceParallelTest {

    static final int WIDTH = 6;

    @DataProvider
    public static Object[][] kinds() {
        return new Object[][] {
            {TENSOR_1}, {TENSOR_2}, {TENSOR_3}, {TENSOR_4}, {DATA_2}, {MESH_2X2}, {MESH_2X3},
        };
    }

    @DataProvider
    public Object[][] networks() {
        return new Object[][] {
            network("tokens", cut -> sequence(body(cut, true, 2), linear(3)), sequences(3, 7)),
            // the rows of a batch are tokens: they are cut over data, and once more over tensor
            network("flat", cut -> body(cut, true, 1), Network.regression(13, WIDTH, WIDTH)),
            // the tokens are those of the flattened batch, of which a row has several
            network(
                    "flattened",
                    cut -> sequence(reshape(-1, WIDTH), body(cut, true, 1), reshape(-1, 7, WIDTH)),
                    sequences(WIDTH, 7)),
            // the last layer takes tokens, and there is no gather before
            network(
                    "the head gathers",
                    cut ->
                            sequence(
                                    body(cut, false, 2),
                                    column(cut, 4),
                                    gelu(),
                                    row(cut, 3, false)),
                    sequences(3, 7)),
            // a mean over the features keeps the tokens apart
            network(
                    "operations over the features",
                    cut ->
                            sequence(
                                    linear(WIDTH),
                                    scatter(cut),
                                    column(cut, 9),
                                    gelu(),
                                    row(cut, WIDTH, true),
                                    map(x -> x.mul(0.5f).add(x.mean(new int[] {2}, true))),
                                    gather(cut)),
                    sequences(WIDTH, 5)),
            // seven tokens, five heads: nothing is divided by the ranks
            network("transformer", cut -> transformer(cut, false), sequences(WIDTH, 7)),
            network("fused transformer", cut -> transformer(cut, true), sequences(WIDTH, 7))
        };
    }

    private static Object[] network(
            String name, Function<Boolean, Block> block, Network.Batches batches) {
        return new Object[] {name, block, batches};
    }

    @Test(dataProvider = "networks", timeOut = 240_000)
    public void trainedAsByDjl(
            String name, Function<Boolean, Block> block, Network.Batches batches) {
        boolean halved = name.contains("transformer"); // a loss that is a sum
        Network.of(block, halved ? HalfSquareLoss::new : Loss::l2Loss, batches)
                .assertEqual(kinds());
    }

    private static Block transformer(boolean cut, boolean fused) {
        return sequence(scatter(cut), layer(cut, fused), layer(cut, fused), gather(cut));
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void oneTokenOnEachRank(TrainerKind kind) {
        int tokens = kind.mesh() == null ? kind.ranks() : kind.ranks() / 2;
        Network.of(cut -> body(cut, true, 2), Loss::l2Loss, sequences(WIDTH, tokens))
                .assertEqual(kind);
    }

    /** Of [rows, 1, 1], a linear layer makes [rows, 1], which tokens of one row are as well. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void oneTokenOfOneFeature(TrainerKind kind) {
        int tokens = kind.mesh() == null ? kind.ranks() : kind.ranks() / 2;
        Network.of(
                        cut ->
                                sequence(
                                        linear(WIDTH),
                                        scatter(cut),
                                        column(cut, 9),
                                        gelu(),
                                        row(cut, 1, true),
                                        linear(5),
                                        gelu(),
                                        gather(cut)),
                        Loss::l2Loss,
                        sequences(5, tokens))
                .assertEqual(kind);
    }

    private static Block layer(boolean cut, boolean fused) {
        return ParallelTransformerDecoderLayer.builder()
                .setAttention(
                        attention(WIDTH, 5)
                                .optKeyValueHeads(5)
                                .optHeadDim(4)
                                .optRotary(RotaryEmbedding.builder().build())
                                .optCausal(true)
                                .optFusedQkv(fused)
                                .optSequenceParallel(cut)
                                .build())
                .setMlp(mlp(WIDTH, 9).optGated(true).optSequenceParallel(cut).build())
                .setNorm(() -> RmsNorm.builder().build())
                .optPreNorm(true)
                .build();
    }

    private static Block scatter(boolean cut) {
        return cut ? new SequenceScatter() : map(x -> x);
    }

    private static Block gather(boolean cut) {
        return cut ? new SequenceGather() : map(x -> x);
    }

    static Network.Batches sequences(int targets, int tokens) {
        return Network.batches("4x" + tokens + "x" + WIDTH, "4x" + tokens + "x" + targets);
    }

    /** A transformer layer's second half, twice: scatter, [norm, column, row, residual], gather. */
    static Block body(boolean cut, boolean gathered, int axis) {
        return sequence(
                linear(WIDTH),
                scatter(cut),
                layer(cut, axis),
                layer(cut, axis),
                norm(axis),
                gather(cut && gathered));
    }

    static Block layer(boolean cut, int axis) {
        return sum(
                map(x -> x), sequence(norm(axis), column(cut, 9), gelu(), row(cut, WIDTH, true)));
    }

    /** Of DJL's norms, that of the features is that of an axis with a number. */
    static Block norm(int axis) {
        return LayerNorm.builder().axis(axis).build();
    }

    static Block column(boolean cut, long units) {
        return cut
                ? ColumnParallelLinear.builder().setUnits(units).optSequenceParallel(true).build()
                : linear(units);
    }

    static Block row(boolean cut, long units, boolean sequenceParallel) {
        return cut ? newRow(units).optSequenceParallel(sequenceParallel).build() : linear(units);
    }
}
