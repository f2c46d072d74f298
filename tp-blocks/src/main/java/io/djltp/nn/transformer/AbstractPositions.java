package io.djltp.nn.transformer;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;
import io.djltp.internal.layout.TokenCut;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;

/** Adds something to each position of a sequence, [B, T, D]. */
abstract class AbstractPositions extends AbstractBlock {

    private static final byte VERSION = 1;

    /** Creates a block. */
    AbstractPositions() {
        super(VERSION);
    }

    /**
     * Returns what is added to some positions, [positions, D].
     *
     * @param store the parameters
     * @param x the input
     * @param own the positions
     * @param training whether it is trained
     */
    abstract NDArray of(ParameterStore store, NDArray x, ShardRange own, boolean training);

    /** Checks an input whose last token has a position before the given one. */
    abstract void check(Shape input, long end);

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        NDArray x = inputs.singletonOrThrow();
        check(x.getShape(), 0);
        ShardRange own = ownTokens(store, x);
        check(x.getShape(), own.end());
        return new NDList(x.add(of(store, x, own, training)));
    }

    /**
     * Returns the positions of an activation: all, or this rank's of a sequence-parallel region.
     */
    private static ShardRange ownTokens(ParameterStore store, NDArray x) {
        ParallelContext context = RankParameterStore.contextOf(store);
        ShardRange all = new ShardRange(0, x.getShape().get(1));
        if (context == null || context.getTensorGroup().getSize() == 1) {
            return all;
        }
        Errors.check(
                !context.getPass().regionOf(x).isShard(),
                "Positions are added to whole features, and here get a rank's slice of them, %s:"
                        + " build the layer before them with optGatherOutput(true), or put them"
                        + " behind the RowParallelLinear",
                x.getShape());
        TokenCut tokens = context.getPass().tokensOf(x);
        return tokens == null ? all : tokens.cut().getRange(context.getTensorGroup().getRank());
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {inputShapes[0]};
    }
}
