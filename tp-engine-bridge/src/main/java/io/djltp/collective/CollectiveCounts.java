package io.djltp.collective;

import java.util.EnumMap;
import java.util.Map;
import java.util.stream.Collectors;

/**
 * How many collective operations a rank has issued and how many bytes it put in. A group of one
 * rank communicates nothing and counts nothing.
 *
 * <p>An instance is a snapshot: subtract one from another to count what happened in between.
 *
 * @param calls how often each operation was called that was called at all
 * @param bytes how many bytes the rank has put into the operations
 */
public record CollectiveCounts(Map<Collective, Long> calls, long bytes) {

    /** Creates counts of nothing. */
    public CollectiveCounts() {
        this(Map.of(), 0);
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
        return plus(other, 1);
    }

    /**
     * Returns what was counted since an earlier snapshot.
     *
     * @param earlier the earlier snapshot
     * @return the difference
     */
    public CollectiveCounts minus(CollectiveCounts earlier) {
        return plus(earlier, -1);
    }

    private CollectiveCounts plus(CollectiveCounts other, int factor) {
        Map<Collective, Long> sum = new EnumMap<>(Collective.class);
        sum.putAll(calls);
        other.calls.forEach(
                (collective, count) -> sum.merge(collective, factor * count, Long::sum));
        sum.values().removeIf(count -> count == 0);
        return new CollectiveCounts(sum, bytes + factor * other.bytes);
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return calls.isEmpty()
                ? "none"
                : calls.entrySet().stream()
                        .map(each -> each.getValue() + " " + each.getKey())
                        .collect(Collectors.joining(", "));
    }
}
