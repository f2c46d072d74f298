package io.djltp.layout;

import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;

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
            throw new IllegalArgumentException(
                    "Sequence parallelism cuts the tokens of [batch, tokens, features] or [tokens,"
                            + " features] over the ranks, and the array is "
                            + shape);
        }
        int axis = shape.dimension() == 2 ? 0 : 1;
        if (shape.get(axis) < ranks) {
            throw new IllegalArgumentException(
                    "Sequence parallelism gives each of the "
                            + ranks
                            + " tensor-parallel ranks a token or more, and axis "
                            + axis
                            + " of "
                            + shape
                            + " has "
                            + shape.get(axis)
                            + ": pad such batches to "
                            + ranks
                            + " tokens, or use fewer ranks along the axis tensor");
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
