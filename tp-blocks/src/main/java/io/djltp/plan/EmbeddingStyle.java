package io.djltp.plan;

import ai.djl.ndarray.types.Shape;
import ai.djl.ndarray.types.SparseFormat;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.core.Embedding;

import io.djltp.nn.VocabParallelEmbedding;

import java.util.function.Supplier;

/**
 * DJL's {@link Embedding}, such as a {@code TrainableWordEmbedding}, which becomes a {@link
 * VocabParallelEmbedding}. That one keeps DJL's, which knows the words, for the way back.
 */
final class EmbeddingStyle extends Style {

    /** An embedding that was DJL's. */
    static final class Replaced extends VocabParallelEmbedding {

        private final Supplier<AbstractBlock> original; // it is no block of the network any more

        Replaced(VocabParallelEmbedding.Builder builder, AbstractBlock original) {
            super(builder);
            this.original = () -> original;
        }

        AbstractBlock original() {
            return original.get();
        }
    }

    /** {@inheritDoc} */
    @Override
    boolean isFor(Block block) {
        return block instanceof Embedding
                && block.getClass().getName().startsWith("ai.djl.")
                && BlockState.read(block, Embedding.class, "sparseFormat") == SparseFormat.DENSE;
    }

    /** {@inheritDoc} */
    @Override
    String wanted() {
        return "DJL's Embedding, with a dense gradient";
    }

    /** {@inheritDoc} */
    @Override
    Class<? extends Block> typeOf(Block block) {
        return Replaced.class;
    }

    static int words(Block embedding) {
        return (Integer) BlockState.read(embedding, Embedding.class, "numEmbeddings");
    }

    /** {@inheritDoc} */
    @Override
    Block parallel(Block block) {
        int features = (Integer) BlockState.read(block, Embedding.class, "embeddingSize");
        Parameter table = (Parameter) BlockState.read(block, Embedding.class, "embedding");
        if (!table.isInitialized()) { // else DJL's block gives it a shape when it is initialized
            table.setShape(new Shape(words(block), features));
        }
        Replaced embedding =
                new Replaced(
                        VocabParallelEmbedding.builder()
                                .setVocabularySize(words(block))
                                .setEmbeddingSize(features),
                        (AbstractBlock) block);
        BlockState.write(embedding, VocabParallelEmbedding.class, "weight", table);
        return BlockState.copy(block, embedding, AbstractBlock.class);
    }

    /** Returns DJL's block of a parallel one. */
    static Block plain(Block block) {
        return BlockState.copy(block, ((Replaced) block).original(), AbstractBlock.class);
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return "vocabulary()";
    }
}
