package io.djltp.nn;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.parameters.RankParameterStore;
import io.djltp.rank.ParallelContext;

import java.io.DataInputStream;
import java.io.IOException;

/**
 * Enters sequence parallelism: from here on each tensor-parallel rank has its tokens only.
 *
 * <ul>
 *   <li>input: [batch, tokens, features] or [tokens, features], the same on all ranks of the
 *       tensor-parallel group
 *   <li>output: [batch, tokens/p, features] or [tokens/p, features]: balanced ranges of the tokens,
 *       which need not be divisible by the number of ranks {@code p}
 * </ul>
 *
 * <p>Elementwise operations, norms over the features, residual sums, {@link ParallelDropout} and
 * DJL's own layers over the features follow, and layers with {@code optSequenceParallel(true)},
 * which gather the tokens and scatter them again. What mixes tokens does not. A {@link
 * SequenceGather} ends it.
 *
 * <p>Collectives: none forward, one all-gather backward. With one tensor-parallel rank, and under
 * an ordinary parameter store, it is the identity, and it is saved as one.
 */
public final class SequenceScatter extends AbstractBlock {

    private static final byte VERSION = 2; // that of DJL's LambdaBlock

    /** Creates a block. */
    public SequenceScatter() {
        super(VERSION);
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore parameterStore,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        ParallelContext context = RankParameterStore.contextOf(parameterStore);
        NDArray input = inputs.singletonOrThrow();
        if (context == null || context.getTensorGroup().getSize() == 1) {
            return new NDList(input);
        }
        return new NDList(SequenceRegion.scatter(context, this, input));
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return inputShapes;
    }

    /** {@inheritDoc} */
    @Override
    public void loadMetadata(byte loadVersion, DataInputStream is)
            throws IOException, MalformedModelException {
        if (loadVersion == VERSION) {
            readInputShapes(is);
        } else if (loadVersion != 1) {
            throw new MalformedModelException("Unsupported encoding version: " + loadVersion);
        }
    }
}
