package io.djltp.nn.recompute;

import static io.djltp.testing.Blocks.attention;
import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.mlp;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.scattered;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.sum;
import static io.djltp.testing.Blocks.tanh;

import ai.djl.ndarray.NDList;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.norm.LayerNorm;

import io.djltp.nn.ParallelDropout;
import io.djltp.nn.Recompute;
import io.djltp.nn.SequenceGather;
import io.djltp.nn.SequenceScatter;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.attention.RotaryEmbedding;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.nn.transformer.ParallelTransformerDecoderLayer;
import io.djltp.testing.Network;
import io.djltp.testing.Surrounded;
import io.djltp.testing.TrainingRun;

/** Networks with and without recomputation, otherwise the same. */
final class RecomputedNetworks {

    static final int WIDTH = 12;
    private static final int BATCH = 4;
    private static final int LENGTH = 5;
    private static final int MEMORY = 3;

    private RecomputedNetworks() {}

    private static ParallelMultiHeadAttention.Builder heads(float dropout, boolean core) {
        return attention(WIDTH, 4).optKeyValueHeads(2).optRecomputeCore(core).optDropout(dropout);
    }

    /** A decoder layer with everything: masks, cross-attention, dropout. */
    static Block decoder(boolean whole, boolean core) {
        return new Surrounded(
                ParallelTransformerDecoderLayer.builder()
                        .setAttention(heads(0.3f, core).optCausal(true).optFusedQkv(true).build())
                        .optCrossAttention(heads(0.3f, core).optCrossAttention(true).build())
                        .setMlp(mlp(WIDTH, 9).optActivation(Activation.geluBlock()).build())
                        .setNorm(() -> LayerNorm.builder().axis(2).build())
                        .optPreNorm(true)
                        .optDropout(0.3f)
                        .optRecompute(whole)
                        .build(),
                WIDTH,
                true,
                3);
    }

    static NDList[] decoderBatch(ai.djl.ndarray.NDManager manager, int step) {
        NDList data = new NDList(TrainingRun.random(manager, step, BATCH, LENGTH, 6));
        data.add(TrainingRun.random(manager, 20 + step, BATCH, MEMORY, 5));
        data.add(Surrounded.mask(manager, BATCH, MEMORY));
        data.add(Surrounded.mask(manager, BATCH, LENGTH));
        NDList labels = new NDList(TrainingRun.random(manager, 40 + step, BATCH, LENGTH, 3));
        return new NDList[] {data, labels};
    }

    /** Two layers of Llama on cut tokens, behind a layer, with dropout. */
    static Block sequenceParallel(boolean recompute) {
        return sequence(
                linear(WIDTH),
                new SequenceScatter(),
                llama(recompute),
                llama(recompute),
                new SequenceGather());
    }

    private static Block llama(boolean recompute) {
        return ParallelTransformerDecoderLayer.builder()
                .setAttention(
                        heads(0, false)
                                .optRotary(RotaryEmbedding.builder().optDim(2).build())
                                .optCausal(true)
                                .optSequenceParallel(true)
                                .build())
                .setMlp(mlp(WIDTH, 9).optGated(true).optSequenceParallel(true).build())
                .setNorm(() -> RmsNorm.builder().build())
                .optPreNorm(true)
                .optDropout(0.2f)
                .optRecompute(recompute)
                .build();
    }

    static Network.Batches sequences() {
        return Network.batches("4x5x6", "4x5x12");
    }

    /** The body, which has no input that is trained, and the head of MIXED mode. */
    static Block bodyAndHead(boolean recompute) {
        Block row = scattered(7);
        return sequence(
                maybe(recompute, sequence(linear(9), tanh(), dropout())),
                maybe(recompute, sequence(head(11), tanh(), dropout(), row)),
                maybe(recompute, sequence(tanh(), linear(3))));
    }

    /** Slices between the parts, a part in a part, and a residual around one. */
    static Block slices(boolean recompute) {
        Block column = column(13);
        Block row = row(8);
        Block inner = maybe(recompute, sequence(tanh(), dropout()));
        return sequence(
                linear(8),
                sum(
                        map(x -> x),
                        sequence(
                                maybe(recompute, column),
                                maybe(recompute, sequence(inner, map(x -> x.mul(x)))),
                                maybe(recompute, row))),
                linear(3));
    }

    private static Block dropout() {
        return ParallelDropout.builder().optRate(0.25f).build();
    }

    static Block maybe(boolean recompute, Block block) {
        return recompute ? new Recompute(block) : block;
    }
}
