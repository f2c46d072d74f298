package io.djltp.collective;

import java.util.EnumMap;
import java.util.Locale;
import java.util.Map;

/**
 * How many collective operations a rank has issued and how many bytes it put in. A group of one
 * rank communicates nothing and counts nothing.
 *
 * <p>An instance is a snapshot: subtract one from another to count what happened in between.
 */
public final class CollectiveCounts {

    private final Map<Collective, Long> calls;
    private final long bytes;

    private CollectiveCounts(Map<Collective, Long> calls, long bytes) {
        this.calls = calls;
        this.bytes = bytes;
    }

    /** Creates counts of nothing. */
    public CollectiveCounts() {
        this(new EnumMap<>(Collective.class), 0);
    }

    /**
     * Returns how often an operation was called.
     *
     * @param collective the operation
     * @return the number of calls
     */
    public long get(Collective collective) {
        return calls.getOrDefault(collective, 0L);
    }

    /**
     * Returns the number of calls of all operations.
     *
     * @return the number of calls
     */
    public long total() {
        return calls.values().stream().mapToLong(Long::longValue).sum();
    }

    /**
     * Returns how many bytes the rank has put into the operations.
     *
     * @return the number of bytes
     */
    public long bytes() {
        return bytes;
    }

    /**
     * Returns these counts and one more call.
     *
     * @param collective the operation called
     * @param size the bytes that the rank put in
     * @return the sum
     */
    public CollectiveCounts plus(Collective collective, long size) {
        Map<Collective, Long> sum = new EnumMap<>(Collective.class);
        sum.putAll(calls);
        sum.merge(collective, 1L, Long::sum);
        return new CollectiveCounts(sum, bytes + size);
    }

    /**
     * Returns these counts and those of another group.
     *
     * @param other what the rank has called there
     * @return the sum
     */
    public CollectiveCounts plus(CollectiveCounts other) {
        Map<Collective, Long> sum = new EnumMap<>(Collective.class);
        sum.putAll(calls);
        other.calls.forEach((collective, count) -> sum.merge(collective, count, Long::sum));
        return new CollectiveCounts(sum, bytes + other.bytes);
    }

    /**
     * Returns what was counted since an earlier snapshot.
     *
     * @param earlier the earlier snapshot
     * @return the difference
     */
    public CollectiveCounts minus(CollectiveCounts earlier) {
        Map<Collective, Long> difference = new EnumMap<>(Collective.class);
        for (Collective collective : Collective.values()) {
            long count = get(collective) - earlier.get(collective);
            if (count != 0) {
                difference.put(collective, count);
            }
        }
        return new CollectiveCounts(difference, bytes - earlier.bytes);
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        if (calls.isEmpty()) {
            return "none";
        }
        StringBuilder text = new StringBuilder();
        calls.forEach(
                (collective, count) ->
                        text.append(text.length() == 0 ? "" : ", ")
                                .append(String.format(Locale.ROOT, "%d %s", count, collective)));
        return text.toString();
    }
}
