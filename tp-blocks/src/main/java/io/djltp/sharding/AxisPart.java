package io.djltp.sharding;

import io.djltp.cut.Cut;

/**
 * A part of an axis that {@link ShardingStrategy#segmented} cuts by itself: of the axis of a
 * stacked weight [q; k; v; gate; up] each rank gets its share of every part, one after another. A
 * value.
 *
 * <p>Heads are never divided. Query heads are cut into balanced ranges, or as they are told to, and
 * a rank has the key/value heads that its query heads use: query head h of H uses key/value head
 * floor(h Hkv / H), where Hkv divides H (grouped-query attention, Ainslie et al., 2023, <a
 * href="https://arxiv.org/abs/2305.13245">arXiv:2305.13245</a>). A key/value head that the query
 * heads of several ranks use is on all of these; its gradient is summed over them.
 */
public interface AxisPart {

    /**
     * Returns a part that is cut into balanced ranges.
     *
     * @param size the length of the part
     * @return the part
     * @throws IllegalArgumentException if it is empty
     */
    static AxisPart even(long size) {
        return new Strategies.Even(size);
    }

    /**
     * Returns a part that is cut as it is told to.
     *
     * @param cut which ranges of the part each rank gets; one for a number of ranks
     * @return the part
     */
    static AxisPart chosen(Cut cut) {
        return new Strategies.Chosen(cut);
    }

    /**
     * Returns a part that is made of heads.
     *
     * @param numHeads the number of heads
     * @param headDim the features of a head
     * @return the part, of {@code numHeads * headDim} elements
     * @throws IllegalArgumentException if one of the numbers is not positive
     */
    static AxisPart heads(int numHeads, long headDim) {
        return keyValueHeads(numHeads, numHeads, headDim);
    }

    /**
     * Returns a part that is made of heads, cut as it is told to.
     *
     * @param heads which heads each rank gets, such as {@code Cut.ofLengths(4, 3)}
     * @param headDim the features of a head
     * @return the part
     * @throws IllegalArgumentException if it has no heads, or these no features
     */
    static AxisPart heads(Cut heads, long headDim) {
        return keyValueHeads(heads, Math.toIntExact(heads.getLength()), headDim);
    }

    /**
     * Returns a part that is made of the heads of keys or values, each on the ranks of the query
     * heads that use it.
     *
     * @param numHeads the number of query heads, cut into balanced ranges
     * @param numKeyValueHeads the number of key/value heads
     * @param headDim the features of a head
     * @return the part, of {@code numKeyValueHeads * headDim} elements
     * @throws IllegalArgumentException if one of the numbers is not positive, or the number of
     *     query heads is not a multiple of that of key/value heads
     */
    static AxisPart keyValueHeads(int numHeads, int numKeyValueHeads, long headDim) {
        return new Strategies.Heads(numHeads, numKeyValueHeads, headDim, null);
    }

    /**
     * Returns a part that is made of the heads of keys or values, for query heads that are cut as
     * they are told to.
     *
     * @param heads which query heads each rank gets
     * @param numKeyValueHeads the number of key/value heads
     * @param headDim the features of a head
     * @return the part
     * @throws IllegalArgumentException if the numbers do not fit, or a rank has several ranges of
     *     heads
     */
    static AxisPart keyValueHeads(Cut heads, int numKeyValueHeads, long headDim) {
        int numHeads = Math.toIntExact(heads.getLength());
        return new Strategies.Heads(numHeads, numKeyValueHeads, headDim, heads);
    }

    /**
     * Returns the length of the part.
     *
     * @return the number of elements of the axis over all ranks
     */
    long getLength();

    /**
     * Returns which ranges of the part each rank has, from the begin of the part.
     *
     * @param ranks the number of ranks
     * @return the cut
     * @throws IllegalArgumentException if there are more ranks than heads, or the part was made for
     *     another number of ranks
     */
    Cut cut(int ranks);
}
