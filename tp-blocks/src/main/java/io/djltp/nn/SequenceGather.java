package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.Errors;
import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.layout.TokenCut;
import io.djltp.internal.rank.ParallelContext;

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
public final class SequenceGather extends SequenceBorder {

    /** Creates a block. */
    public SequenceGather() {}

    /** {@inheritDoc} */
    @Override
    NDArray cross(ParallelContext context, NDArray input) {
        TokenCut cut = context.getPass().tokensOf(input);
        if (cut == null) {
            throw notCut(input.getShape());
        }
        return SequenceRegion.gather(context, this, input, cut, false);
    }

    /** {@inheritDoc} */
    @Override
    ForecastArray cross(PassForecast pass, ForecastArray input) {
        if (!input.region().isTokensCut()) {
            throw notCut(input.shape());
        }
        return pass.getMappings(this).gatherFromSequenceRegion(input, false);
    }

    private static IllegalArgumentException notCut(Shape shape) {
        return Errors.argument(
                "SequenceGather gets %s, whose tokens are not cut over the ranks: let it follow"
                        + " a SequenceScatter, or a RowParallelLinear with"
                        + " optSequenceParallel(true)",
                shape);
    }
}
