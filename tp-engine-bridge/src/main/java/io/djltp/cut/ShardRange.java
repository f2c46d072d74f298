package io.djltp.cut;

import io.djltp.internal.Errors;

/**
 * A range of an axis.
 *
 * @param start the first index
 * @param length the number of indices
 */
public record ShardRange(long start, long length) {

    /**
     * Creates a range.
     *
     * @param start the first index
     * @param length the number of indices
     * @throws IllegalArgumentException if one of the numbers is negative
     */
    public ShardRange {
        if (start < 0 || length < 0) {
            throw Errors.argument("A range cannot start at %s with a length of %s", start, length);
        }
    }

    /**
     * Returns a rank's range of {@link Cut#balanced}.
     *
     * @param total the length of the axis
     * @param rank the rank
     * @param size the number of ranks
     * @return the range
     */
    public static ShardRange balanced(long total, int rank, int size) {
        long base = total / size;
        long rest = total % size;
        return new ShardRange(rank * base + Math.min(rank, rest), base + (rank < rest ? 1 : 0));
    }

    /**
     * Returns a range of the same length elsewhere.
     *
     * @param places how many places further it is
     * @return the range
     */
    public ShardRange movedBy(long places) {
        return new ShardRange(start + places, length);
    }

    /**
     * Returns the first index after the range.
     *
     * @return the end
     */
    public long end() {
        return start + length;
    }
}
