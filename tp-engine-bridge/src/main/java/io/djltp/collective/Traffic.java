package io.djltp.collective;

/**
 * What operations of one kind move, for one rank.
 *
 * <p>The payload of an operation is the array that it is about, whole: that of an all-reduce or a
 * broadcast, what an all-gather makes, what a reduce-scatter or an all-to-all takes. It is the same
 * for all ranks of the group, also where their shares differ.
 *
 * <p>The bytes on the wire are those that a rank sends in the ring algorithm, which are the fewest
 * that an algorithm can do with: for a payload of \(N\) bytes and \(p\) ranks \(2 \frac{p-1}{p} N\)
 * for an all-reduce and \(\frac{p-1}{p} N\) for an all-gather, a reduce-scatter, a broadcast and an
 * all-to-all. Where shares differ it is the mean over the ranks. They are computed and not
 * measured: ranks of one process send nothing, and a backend may choose another algorithm.
 *
 * @param calls how often an operation was called
 * @param payload the bytes of the arrays
 * @param wire the bytes that a rank sends, rounded down for each call
 */
public record Traffic(long calls, long payload, long wire) {

    /** Nothing. */
    public static final Traffic NONE = new Traffic(0, 0, 0);

    /**
     * Returns what one call moves.
     *
     * @param collective the operation
     * @param size the number of ranks of the group
     * @param payload the bytes of the whole array
     * @return the traffic
     */
    public static Traffic of(Collective collective, int size, long payload) {
        int times = collective == Collective.ALL_REDUCE ? 2 : 1;
        return new Traffic(1, payload, times * (size - 1L) * payload / size);
    }

    /**
     * Returns the sum of two.
     *
     * @param other more of the same
     * @return the sum
     */
    public Traffic plus(Traffic other) {
        return new Traffic(calls + other.calls, payload + other.payload, wire + other.wire);
    }
}
