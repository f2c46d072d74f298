package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Block;

import io.djltp.internal.Errors;
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.layout.TokenCut;
import io.djltp.internal.rank.ParallelContext;

/**
 * The ways in and out of sequence parallelism (Korthikanti et al., 2022, <a
 * href="https://arxiv.org/abs/2205.05198">arXiv:2205.05198</a>), for blocks: between
 * tensor-parallel parts of a network the tokens are cut over the tensor-parallel ranks, and norms,
 * dropout and residual sums are computed of a rank's tokens alone.
 *
 * <table>
 * <caption>The ways</caption>
 * <tr><th>way</th><th>forward</th><th>backward</th></tr>
 * <tr><td>{@link #scatter}, in, from what is replicated</td><td>own tokens</td>
 * <td>all-gather</td></tr>
 * <tr><td>{@link #reduceScatter}, in, from summands</td><td>reduce-scatter</td>
 * <td>all-gather</td></tr>
 * <tr><td>{@link #gather}, out, to tensor-parallel products</td><td>all-gather</td>
 * <td>reduce-scatter</td></tr>
 * <tr><td>{@link #gather}, out, to what is replicated</td><td>all-gather</td>
 * <td>own tokens</td></tr>
 * </table>
 *
 * <p>Several products may share what was gathered once, such as those of query, key and value:
 * their gradients are summed before they are scattered.
 */
public final class SequenceRegion {

    private SequenceRegion() {}

    /**
     * Enters the region from an array that all ranks have.
     *
     * @param context the rank, one of several
     * @param user the block, for errors
     * @param whole all tokens, [batch, tokens, .., features] or [tokens, features]
     * @return this rank's tokens
     * @throws IllegalArgumentException if there are fewer tokens than ranks, the tokens are cut
     *     already, or the features are
     */
    public static NDArray scatter(ParallelContext context, Block user, NDArray whole) {
        ForwardPass pass = context.getPass();
        TokenCut.checkWhole(
                user.getClass().getSimpleName(), pass.regionOf(whole), whole.getShape());
        TokenCut cut = cutOf(context, user, whole);
        NDArray own =
                context.getMappings(user).scatterToSequenceRegion(whole, cut.cut(), cut.axis());
        return pass.enterTokens(own, cut);
    }

    /**
     * Enters the region from summands: the output of a row-parallel product, or the rows of a
     * vocabulary-parallel embedding.
     *
     * @param context the rank, one of several
     * @param user the block, for errors
     * @param summand this rank's summand of all tokens, [batch, tokens, .., features] or [tokens,
     *     features]
     * @return this rank's tokens of the sum
     * @throws IllegalArgumentException if there are fewer tokens than ranks
     */
    public static NDArray reduceScatter(ParallelContext context, Block user, NDArray summand) {
        TokenCut cut = cutOf(context, user, summand);
        NDArray own =
                context.getMappings(user)
                        .reduceScatterToSequenceRegion(summand, cut.cut(), cut.axis());
        return context.getPass().enterTokens(own, cut);
    }

    /**
     * Leaves the region.
     *
     * @param context the rank, one of several
     * @param user the block, for errors
     * @param own this rank's tokens
     * @param cut how the tokens are cut, see {@link ForwardPass#tokensOf}
     * @param partial whether tensor-parallel products follow, whose gradient is a summand on each
     *     rank; else all ranks compute the same with the result
     * @return all tokens
     */
    public static NDArray gather(
            ParallelContext context, Block user, NDArray own, TokenCut cut, boolean partial) {
        if (!cut.fits(own.getShape(), context.getTensorGroup().getRank())) {
            throw Errors.argument(
                    "%s gets %s, whose axis %s is no longer this rank's part of the tokens, which"
                            + " are cut as %s: between a SequenceScatter and a SequenceGather the"
                            + " token axis has to stay where it is",
                    user.getClass().getSimpleName(), own.getShape(), cut.axis(), cut.cut());
        }
        NDArray whole =
                context.getMappings(user)
                        .gatherFromSequenceRegion(own, cut.cut(), cut.axis(), partial);
        return context.getPass().leaveTokens(whole);
    }

    private static TokenCut cutOf(ParallelContext context, Block user, NDArray whole) {
        String name = user.getClass().getSimpleName();
        int ranks = context.getTensorGroup().getSize();
        return TokenCut.of(name, context.getPass().isOverlaid(), whole.getShape(), ranks);
    }
}
