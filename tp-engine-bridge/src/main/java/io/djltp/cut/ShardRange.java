package io.djltp.cut;

/**
 * The balanced range of an axis that belongs to one rank: the first {@code total mod size} ranks
 * get one element more than the others. The ranges of all ranks are contiguous, disjoint and cover
 * the axis; if there are fewer elements than ranks, the last ranges are empty.
 *
 * <p>The rule is that of MAX's sharding strategies. PyTorch's {@code chunk} has another.
 *
 * @param start the first index
 * @param length the number of indices
 */
public record ShardRange(long start, long length) {

    /**
     * Returns a rank's range.
     *
     * @param total the length of the axis
     * @param rank the rank
     * @param size the number of ranks
     * @return the range
     */
    public static ShardRange balanced(long total, int rank, int size) {
        if (total < 0 || rank < 0 || rank >= size) {
            throw new IllegalArgumentException(
                    "No range of " + total + " elements for rank " + rank + " of " + size);
        }
        long base = total / size;
        long rest = total % size;
        return new ShardRange(rank * base + Math.min(rank, rest), base + (rank < rest ? 1 : 0));
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
