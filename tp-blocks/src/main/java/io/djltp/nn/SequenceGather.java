package io.djltp.nn;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.layout.TokenCut;
import io.djltp.parameters.RankParameterStore;
import io.djltp.rank.ParallelContext;

import java.io.DataInputStream;
import java.io.IOException;

/**
 * Leaves sequence parallelism: from here on all tensor-parallel ranks have all tokens, and compute
 * the same with them.
 *
 * <ul>
 *   <li>input: [batch, tokens/p, features] or [tokens/p, features]: this rank's tokens, as {@link
 *       SequenceScatter} or a {@link RowParallelLinear} with {@code optSequenceParallel(true)}
 *       leaves them
 *   <li>output: [batch, tokens, features] or [tokens, features], the same on all ranks
 * </ul>
 *
 * <p>Collectives: one all-gather forward, none backward. With one tensor-parallel rank, and under
 * an ordinary parameter store, it is the identity, and it is saved as one.
 */
public final class SequenceGather extends AbstractBlock {

    private static final byte VERSION = 2; // that of DJL's LambdaBlock

    /** Creates a block. */
    public SequenceGather() {
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
        TokenCut cut = context.getPass().getTokenRegion().cutOf(input);
        if (cut == null) {
            throw new IllegalArgumentException(
                    "SequenceGather gets "
                            + input.getShape()
                            + ", whose tokens are not cut over the ranks: let it follow a"
                            + " SequenceScatter, or a RowParallelLinear with"
                            + " optSequenceParallel(true)");
        }
        return new NDList(SequenceRegion.gather(context, this, input, cut, false));
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
