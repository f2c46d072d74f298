package io.djltp.nn;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.types.Shape;
import ai.djl.ndarray.types.SparseFormat;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Parameter;

import io.djltp.parameters.HeldParameters;
import io.djltp.parameters.ShardedBlock;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;

/** An embedding that is saved and loaded as DJL's {@code Embedding} with a dense gradient is. */
abstract class SavedEmbedding extends AbstractBlock implements ShardedBlock {

    private static final byte VERSION = 6; // that of DJL's Embedding

    /** Creates an embedding. */
    SavedEmbedding() {
        super(VERSION);
    }

    /** Returns a weight that has the name of the one of DJL's embeddings. */
    static Parameter newWeight(long rows, long features) {
        return Parameter.builder()
                .setName("embedding")
                .setType(Parameter.Type.WEIGHT)
                .optShape(new Shape(rows, features))
                .build();
    }

    /** Returns what errors call the block. */
    abstract String describe();

    /** Returns the weight: [vocabulary, features] over all ranks. */
    abstract Parameter weight();

    /** {@inheritDoc} */
    @Override
    public void saveParameters(DataOutputStream os) throws IOException {
        os.write(version);
        saveMetadata(os);
        HeldParameters.save(this, os);
    }

    /** {@inheritDoc} */
    @Override
    protected void saveMetadata(DataOutputStream os) throws IOException {
        saveInputShapes(os);
        os.writeInt(SparseFormat.DENSE.getValue());
    }

    /**
     * {@inheritDoc}
     *
     * @throws MalformedModelException if the file is not that of an embedding
     */
    @Override
    public void loadMetadata(byte loadVersion, DataInputStream is)
            throws IOException, MalformedModelException {
        if (loadVersion != VERSION) {
            throw new MalformedModelException(
                    String.format(
                            "%s loads version %d of an embedding, which DJL 0.35 writes, not %d",
                            describe(), VERSION, loadVersion));
        }
        readInputShapes(is);
        is.readInt(); // the format of the gradient, which is dense here
    }
}
