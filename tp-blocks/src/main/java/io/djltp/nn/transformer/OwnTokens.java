package io.djltp.nn.transformer;

import ai.djl.ndarray.NDArray;
import ai.djl.training.ParameterStore;

import io.djltp.cut.ShardRange;
import io.djltp.layout.TokenCut;
import io.djltp.parameters.RankParameterStore;
import io.djltp.rank.ParallelContext;

/** Which positions of the whole sequence the tokens of an activation have. */
final class OwnTokens {

    private OwnTokens() {}

    /**
     * Returns the positions: all of them, or this rank's in a sequence-parallel region.
     *
     * @param store the parameters, which know the rank
     * @param x the activation, [B, T, D]
     * @throws IllegalArgumentException if x is a slice of the features, whose numbers among all of
     *     them positions would not know
     */
    static ShardRange of(ParameterStore store, NDArray x) {
        ParallelContext context = RankParameterStore.contextOf(store);
        boolean alone = context == null || context.getTensorGroup().getSize() == 1;
        if (!alone && context.getPass().regionOf(x).isShard()) {
            throw new IllegalArgumentException(
                    "Positions are added to whole features, and here get a rank's slice of them, "
                            + x.getShape()
                            + ": build the layer before them with optGatherOutput(true), or put"
                            + " them behind the RowParallelLinear");
        }
        TokenCut tokens = alone ? null : context.getPass().tokensOf(x);
        return tokens == null
                ? new ShardRange(0, x.getShape().get(1))
                : tokens.cut().getRange(context.getTensorGroup().getRank());
    }
}
