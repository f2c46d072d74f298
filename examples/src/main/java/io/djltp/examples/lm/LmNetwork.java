package io.djltp.examples.lm;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.initializer.NormalInitializer;

import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.attention.RotaryEmbedding;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.nn.transformer.ParallelTransformer;
import io.djltp.nn.transformer.ParallelTransformerDecoderLayer;

import java.util.stream.IntStream;

/**
 * A small GPT of the parts of Llama: embedding, layers, norm, and as its head the embedding again.
 *
 * <ul>
 *   <li>input: characters, [batch, context], int64
 *   <li>output: logits, [batch, context, vocabulary], on a rank those of its part of the vocabulary
 * </ul>
 */
public final class LmNetwork {

    private static final float EPSILON = 1e-5f;
    private static final float DEVIATION = 0.02f; // of the weights at the beginning, as in GPT-2

    private LmNetwork() {}

    /**
     * Returns the network, not initialized.
     *
     * @param sizes the sizes
     * @param vocabulary the number of characters
     * @param cutTokens whether tokens are cut over the ranks between attention and MLPs, from the
     *     embedding to the head
     * @return the network
     */
    public static Block create(LmSizes sizes, int vocabulary, boolean cutTokens) {
        VocabParallelEmbedding embedding =
                VocabParallelEmbedding.builder()
                        .setVocabularySize(vocabulary)
                        .setEmbeddingSize(sizes.width)
                        .optSequenceParallel(cutTokens)
                        .build();
        Block layers =
                new ParallelTransformer(
                        IntStream.range(0, sizes.layers)
                                .mapToObj(i -> layer(sizes, cutTokens))
                                .toList(),
                        norm());
        Block head =
                ColumnParallelLinear.builder()
                        .setUnits(vocabulary)
                        .optTiedWeight(embedding)
                        .optPrecision(sizes.precision)
                        .optBias(false)
                        .optSequenceParallel(cutTokens)
                        .build();
        Block network = new SequentialBlock().add(embedding).add(layers).add(head);
        network.setInitializer(new NormalInitializer(DEVIATION), Parameter.Type.WEIGHT);
        return network;
    }

    /** Returns a layer of Llama. */
    private static Block layer(LmSizes sizes, boolean cutTokens) {
        return ParallelTransformerDecoderLayer.builder()
                .setAttention(
                        ParallelMultiHeadAttention.builder()
                                .setEmbeddingSize(sizes.width)
                                .setHeads(sizes.heads)
                                .optPrecision(sizes.precision)
                                .optKeyValueHeads(sizes.keyValueHeads())
                                .optRotary(RotaryEmbedding.builder().build())
                                .optCausal(true)
                                .optBias(false)
                                .optSequenceParallel(cutTokens)
                                .build())
                .setMlp(
                        ParallelMlp.builder()
                                .setUnits(sizes.width)
                                .setHiddenFeatures(sizes.hidden())
                                .optPrecision(sizes.precision)
                                .optGated(true)
                                .optBias(false)
                                .optSequenceParallel(cutTokens)
                                .build())
                .setNorm(LmNetwork::norm)
                .optPreNorm(true)
                .build();
    }

    private static Block norm() {
        return RmsNorm.builder().optEpsilon(EPSILON).build();
    }

    /**
     * Returns the shape of a batch.
     *
     * @param batch the number of windows of text
     * @param sizes the sizes
     * @return the shape of their characters
     */
    public static Shape inputShape(int batch, LmSizes sizes) {
        return new Shape(batch, sizes.context);
    }
}
