package io.djltp.nn;

import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.nn.Block;

import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.attention.RotaryEmbedding;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.nn.transformer.ParallelTransformerDecoderLayer;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;

import org.testng.annotations.Test;

/** Layers of transformers with cut tokens around them are the unsharded layers. */
public class SequenceTransformerTest {

    private static final int WIDTH = SequenceParallelTest.WIDTH;

    /** Seven tokens, five heads: nothing is divided by the ranks. */
    @Test(timeOut = 240_000)
    public void aLayerIsEqual() {
        for (boolean fused : new boolean[] {false, true}) {
            Network.of(
                            cut ->
                                    sequence(
                                            cut ? new SequenceScatter() : map(x -> x),
                                            layer(cut, fused),
                                            layer(cut, fused),
                                            cut ? new SequenceGather() : map(x -> x)),
                            HalfSquareLoss::new,
                            SequenceParallelTest.sequences(WIDTH, 7))
                    .assertEqual(SequenceParallelTest.kinds());
        }
    }

    private static Block layer(boolean cut, boolean fused) {
        return ParallelTransformerDecoderLayer.builder()
                .setAttention(
                        ParallelMultiHeadAttention.builder()
                                .setEmbeddingSize(WIDTH)
                                .setHeads(5)
                                .optKeyValueHeads(5)
                                .optHeadDim(4)
                                .optRotary(RotaryEmbedding.builder().build())
                                .optCausal(true)
                                .optFusedQkv(fused)
                                .optSequenceParallel(cut)
                                .build())
                .setMlp(
                        ParallelMlp.builder()
                                .setUnits(WIDTH)
                                .setHiddenFeatures(9)
                                .optGated(true)
                                .optSequenceParallel(cut)
                                .build())
                .setNorm(() -> RmsNorm.builder().build())
                .optPreNorm(true)
                .build();
    }
}
