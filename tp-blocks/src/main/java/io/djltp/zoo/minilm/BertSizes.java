package io.djltp.zoo.minilm;

import ai.djl.nn.Block;
import ai.djl.nn.norm.LayerNorm;

import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.nn.transformer.ParallelTransformerEncoderLayer;

/**
 * The sizes of a BERT, and the blocks of these sizes.
 *
 * @param vocabulary the number of word pieces
 * @param positions the number of positions
 * @param kinds the number of kinds of sentences
 * @param layers the number of layers
 * @param width the number of features of a word piece
 * @param heads the number of heads, which share the features
 * @param hidden the number of features between the two matrices of a layer
 */
public record BertSizes(
        long vocabulary,
        long positions,
        long kinds,
        int layers,
        long width,
        int heads,
        long hidden) {

    /** Those of all-MiniLM-L6-v2. */
    public static final BertSizes MINI_LM = new BertSizes(30_522, 512, 2, 6, 384, 12, 1536);

    private static final float EPSILON = 1e-12f;

    /** Returns a normalization of the features. */
    LayerNorm norm() {
        return LayerNorm.builder().axis(2).optEpsilon(EPSILON).build();
    }

    /** Returns the table of the word pieces. */
    Block words() {
        return VocabParallelEmbedding.builder()
                .setVocabularySize(vocabulary)
                .setEmbeddingSize(width)
                .build();
    }

    /** Returns a layer. */
    Block layer() {
        return ParallelTransformerEncoderLayer.bert(width, heads, hidden, 0);
    }
}
