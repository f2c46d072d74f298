package io.djltp.sharding;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;

import java.util.List;

/**
 * The heads of queries, or of the keys or values that these use. Queries use themselves: as many
 * key/value heads as query heads.
 *
 * @param queries the number of query heads
 * @param keyValues the number of heads of the part
 * @param dim the features of a head
 * @param chosen which query heads each rank has, or {@code null}: balanced ranges
 */
record HeadPart(int queries, int keyValues, long dim, Cut chosen) {

    HeadPart {
        AxisPart.checkPositive("The number of heads", queries);
        AxisPart.checkPositive("The number of key/value heads", keyValues);
        AxisPart.checkPositive("The features of a head", dim);
        if (queries % keyValues != 0) {
            throw new IllegalArgumentException(
                    queries
                            + " query heads cannot share "
                            + keyValues
                            + " key/value heads: as many have to use each. Give a number of query"
                            + " heads that is a multiple of that of key/value heads");
        }
        for (int rank = 0; chosen != null && rank < chosen.getRanks(); rank++) {
            if (chosen.getRanges(rank).size() != 1 || chosen.getShardLength(rank) == 0) {
                throw new IllegalArgumentException(
                        "Rank " + rank + " of a cut of heads needs one range, not " + chosen);
            }
        }
    }

    /** Returns the number of elements. */
    long length() {
        return keyValues * dim;
    }

    /** Returns which elements each rank has: those of the heads that its query heads use. */
    Cut cut(int ranks) {
        if (ranks > queries) {
            throw new IllegalArgumentException(
                    "a head cannot be divided, and there are "
                            + ranks
                            + " ranks for "
                            + queries
                            + " heads. Use at most "
                            + queries
                            + (queries == 1 ? " tensor-parallel rank" : " tensor-parallel ranks")
                            + ", and the others along the axis data");
        }
        Cut heads =
                chosen == null
                        ? Cut.balanced(queries, ranks)
                        : AxisPart.checkRanks(chosen, ranks, "heads");
        int sharing = queries / keyValues; // query heads that use one key/value head
        return Cut.of(
                length(),
                ranks,
                rank -> {
                    ShardRange own = heads.getRange(rank);
                    long first = own.start() / sharing;
                    long last = (own.end() - 1) / sharing;
                    return List.of(new ShardRange(first * dim, (last - first + 1) * dim));
                });
    }

    /** Returns whether these are the keys or values of some query heads. */
    boolean isUsedBy(HeadPart other) {
        return queries == other.queries
                && other.queries == other.keyValues
                && dim == other.dim
                && (chosen == null ? other.chosen == null : chosen.equals(other.chosen));
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        String query = chosen == null ? String.valueOf(queries) : String.valueOf(chosen);
        return queries == keyValues
                ? "heads(" + query + ", " + dim + ")"
                : "keyValueHeads(" + query + ", " + keyValues + ", " + dim + ")";
    }
}
