package io.djltp.sharding;

import io.djltp.cut.Cut;

import java.util.Objects;
import java.util.function.IntFunction;

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
public final class AxisPart {

    private final long length;
    private final String description;
    private final Object value; // what makes it equal to another one
    private final IntFunction<Cut> cuts;

    private AxisPart(long length, String description, Object value, IntFunction<Cut> cuts) {
        this.length = length;
        this.description = description;
        this.value = value;
        this.cuts = cuts;
    }

    /**
     * Returns a part that is cut into balanced ranges.
     *
     * @param size the length of the part
     * @return the part
     * @throws IllegalArgumentException if it is empty
     */
    public static AxisPart even(long size) {
        checkPositive("A part of an axis", size);
        return new AxisPart(size, "even(" + size + ")", size, ranks -> Cut.balanced(size, ranks));
    }

    /**
     * Returns a part that is cut as it is told to.
     *
     * @param cut which ranges of the part each rank gets; one for a number of ranks
     * @return the part
     */
    public static AxisPart chosen(Cut cut) {
        return new AxisPart(
                cut.getLength(),
                "chosen(" + cut + ")",
                cut,
                ranks -> checkRanks(cut, ranks, "elements"));
    }

    /**
     * Returns a part that is made of heads.
     *
     * @param numHeads the number of heads
     * @param headDim the features of a head
     * @return the part, of {@code numHeads * headDim} elements
     * @throws IllegalArgumentException if one of the numbers is not positive
     */
    public static AxisPart heads(int numHeads, long headDim) {
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
    public static AxisPart heads(Cut heads, long headDim) {
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
    public static AxisPart keyValueHeads(int numHeads, int numKeyValueHeads, long headDim) {
        return of(new HeadPart(numHeads, numKeyValueHeads, headDim, null));
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
    public static AxisPart keyValueHeads(Cut heads, int numKeyValueHeads, long headDim) {
        int numHeads = Math.toIntExact(heads.getLength());
        return of(new HeadPart(numHeads, numKeyValueHeads, headDim, heads));
    }

    private static AxisPart of(HeadPart heads) {
        return new AxisPart(heads.length(), heads.toString(), heads, heads::cut);
    }

    static void checkPositive(String what, long number) {
        if (number < 1) {
            throw new IllegalArgumentException(what + " must be 1 or more, not " + number);
        }
    }

    static Cut checkRanks(Cut cut, int ranks, String what) {
        if (cut.getRanks() != ranks) {
            throw new IllegalArgumentException(
                    "the cut "
                            + cut
                            + " "
                            + what
                            + " is one for "
                            + cut.getRanks()
                            + " ranks, not for "
                            + ranks);
        }
        return cut;
    }

    /**
     * Returns the length of the part.
     *
     * @return the number of elements of the axis over all ranks
     */
    public long getLength() {
        return length;
    }

    /**
     * Returns which ranges of the part each rank has, from the begin of the part.
     *
     * @param ranks the number of ranks
     * @return the cut
     * @throws IllegalArgumentException if there are more ranks than heads, or the part was made for
     *     another number of ranks
     */
    public Cut cut(int ranks) {
        return cuts.apply(ranks);
    }

    /** Returns the heads, or {@code null} if it is not made of heads. */
    HeadPart heads() {
        return value instanceof HeadPart ? (HeadPart) value : null;
    }

    /** {@inheritDoc} */
    @Override
    public boolean equals(Object other) {
        return other instanceof AxisPart && ((AxisPart) other).value.equals(value);
    }

    /** {@inheritDoc} */
    @Override
    public int hashCode() {
        return Objects.hash(value);
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return description;
    }
}
