package io.djltp.testing;

import ai.djl.modality.nlp.embedding.TrainableWordEmbedding;
import ai.djl.nn.core.Embedding;

import java.nio.ByteBuffer;
import java.util.Optional;

/** DJL's embedding of numbers, as {@link TrainableWordEmbedding} is one of words. */
public final class PlainEmbedding extends Embedding<Integer> {

    /**
     * Creates an embedding.
     *
     * @param vocabulary the number of ids
     * @param features the length of a row
     */
    public PlainEmbedding(int vocabulary, int features) {
        super(new Builder().setEmbeddingSize(features).optNumEmbeddings(vocabulary));
    }

    private static final class Builder extends BaseBuilder<Integer, Builder> {

        @Override
        protected Builder setType(Class<Integer> type) {
            embeddingType = type;
            return this;
        }

        @Override
        protected Builder self() {
            return this;
        }
    }

    /** {@inheritDoc} */
    @Override
    public byte[] encode(Integer item) {
        return ByteBuffer.allocate(Integer.BYTES).putInt(item).array();
    }

    /** {@inheritDoc} */
    @Override
    public Integer decode(byte[] bytes) {
        return ByteBuffer.wrap(bytes).getInt();
    }

    /** {@inheritDoc} */
    @Override
    public long embed(Integer item) {
        return item;
    }

    /** {@inheritDoc} */
    @Override
    public Optional<Integer> unembed(long index) {
        return Optional.of((int) index);
    }

    /** {@inheritDoc} */
    @Override
    public boolean hasItem(Integer item) {
        return item >= 0 && item < numEmbeddings;
    }
}
