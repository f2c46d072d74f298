package io.djltp.internal.layout;

import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.internal.Errors;

/**
 * How the tokens of an activation are cut over the tensor-parallel ranks, in sequence parallelism
 * (Korthikanti et al., 2022, <a href="https://arxiv.org/abs/2205.05198">arXiv:2205.05198</a>): axis
 * 1 of [batch, tokens, features], axis 0 of [tokens, features].
 *
 * @param cut which tokens each rank has
 * @param axis the number of the token axis
 */
public record TokenCut(Cut cut, int axis) {

    /**
     * Checks that the tokens of an array can be cut: those that all ranks have.
     *
     * @param user what cuts them, for errors
     * @param region the placement of the array
     * @param shape its shape
     * @throws IllegalArgumentException if the tokens or the features are cut already
     */
    public static void checkWhole(String user, Region region, Shape shape) {
        Errors.check(
                !region.isShard() && !region.isTokensCut(),
                "%s cuts the tokens of an array that all ranks have, and gets %s%s",
                user,
                shape,
                region.isShard()
                        ? ", a slice of the features: let a RowParallelLinear with"
                                + " optSequenceParallel(true) follow instead"
                        : ", whose tokens are cut already: remove one of the two");
    }

    /**
     * Cuts the tokens of an array in balanced ranges.
     *
     * @param user what cuts them, for errors
     * @param overlaid whether the rows are cut over the same ranks
     * @param shape the shape of the whole, [batch, tokens, .., features] or [tokens, features]
     * @param ranks the number of ranks
     * @return the cut
     * @throws IllegalArgumentException if the rows are cut over the same ranks, or there are fewer
     *     tokens than ranks
     */
    public static TokenCut of(String user, boolean overlaid, Shape shape, int ranks) {
        Errors.check(
                !overlaid,
                "%s cuts the tokens over the tensor-parallel ranks, and in MIXED mode the rows of"
                        + " the batch are cut over the same ranks: use TENSOR mode or a mesh of"
                        + " data and tensor, or optBatchShardedInput(true) and"
                        + " optBatchShardedOutput(true)",
                user);
        return of(shape, ranks);
    }

    /**
     * Cuts the tokens of an array in balanced ranges.
     *
     * @param shape the shape of the whole, [batch, tokens, .., features] or [tokens, features]
     * @param ranks the number of ranks
     * @return the cut
     * @throws IllegalArgumentException if there is no token axis, or it has fewer tokens than there
     *     are ranks
     */
    public static TokenCut of(Shape shape, int ranks) {
        if (shape.dimension() < 2) {
            throw Errors.argument(
                    "Sequence parallelism cuts the tokens of [batch, tokens, features] or [tokens, features] over the ranks, and the array is %s",
                    shape);
        }
        int axis = shape.dimension() == 2 ? 0 : 1;
        if (shape.get(axis) < ranks) {
            throw Errors.argument(
                    "Sequence parallelism gives each of the %s tensor-parallel ranks a token or more, and axis %s of %s has %s: pad such batches to %s tokens, or use fewer ranks along the axis tensor",
                    ranks, axis, shape, shape.get(axis), ranks);
        }
        return new TokenCut(Cut.balanced(shape.get(axis), ranks), axis);
    }

    /**
     * Returns whether an array can be a rank's part.
     *
     * @param shape the shape of the array
     * @param rank the rank
     * @return whether the token axis is as long as the rank's tokens are many
     */
    public boolean fits(Shape shape, int rank) {
        return shape.dimension() > axis && shape.get(axis) == cut.getShardLength(rank);
    }
}
