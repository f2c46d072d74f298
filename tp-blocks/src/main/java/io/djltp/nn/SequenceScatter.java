package io.djltp.nn;

import ai.djl.ndarray.NDArray;

import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.rank.ParallelContext;

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
public final class SequenceScatter extends SequenceBorder {

    /** Creates a block. */
    public SequenceScatter() {}

    /** {@inheritDoc} */
    @Override
    NDArray cross(ParallelContext context, NDArray input) {
        return SequenceRegion.scatter(context, this, input);
    }

    /** {@inheritDoc} */
    @Override
    ForecastArray cross(PassForecast pass, ForecastArray input) {
        return pass.getMappings(this).scatterTokens(input);
    }
}
