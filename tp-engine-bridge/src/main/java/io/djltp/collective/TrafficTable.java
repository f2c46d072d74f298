package io.djltp.collective;

import java.util.EnumMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

/**
 * What a rank communicates, by who issues it, the direction and the operation. It is filled by what
 * is really issued, or by what a plan says that will be: the two are equal if they have the same
 * entries, in whatever order.
 *
 * <p>The idea is that of PyTorch's {@code CommDebugMode}, which counts by module.
 */
public final class TrafficTable {

    private final Map<Place, Map<Collective, Traffic>> entries = new LinkedHashMap<>();

    /** Creates a table of nothing. */
    public TrafficTable() {}

    /** What a rank is doing while it communicates. */
    public enum Direction {
        /** It computes the outputs of layers, or a loss. */
        FORWARD,
        /** It computes gradients. */
        BACKWARD,
        /** It sums the gradients of parameters, and updates them. */
        STEP,
        /** Something outside of the passes, such as an initialization or a check. */
        OTHER;

        /** {@inheritDoc} */
        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    /**
     * Who issues an operation, and when.
     *
     * @param issuer the block, by its path in the network, the loss, or the gradient
     * @param direction what the rank is doing
     */
    public record Place(String issuer, Direction direction) {}

    /**
     * What operations of one kind move, for one rank.
     *
     * <p>The payload of an operation is the array that it is about, whole: that of an all-reduce or
     * a broadcast, what an all-gather makes, what a reduce-scatter or an all-to-all takes. It is
     * the same for all ranks of the group, also where their shares differ.
     *
     * <p>The bytes on the wire are those that a rank sends in the ring algorithm, which are the
     * fewest that an algorithm can do with: for a payload of \(N\) bytes and \(p\) ranks \(2
     * \frac{p-1}{p} N\) for an all-reduce and \(\frac{p-1}{p} N\) for an all-gather, a
     * reduce-scatter, a broadcast and an all-to-all. Where shares differ it is the mean over the
     * ranks. They are computed and not measured: ranks of one process send nothing, and a backend
     * may choose another algorithm.
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

    /**
     * Adds one call. One in a group of one rank is none.
     *
     * @param issuer who issues it
     * @param direction what the rank is doing
     * @param collective the operation
     * @param size the number of ranks of the group
     * @param payload the bytes of the whole array
     */
    public synchronized void add(
            String issuer, Direction direction, Collective collective, int size, long payload) {
        if (size > 1) {
            entries.computeIfAbsent(
                            new Place(issuer, direction), key -> new EnumMap<>(Collective.class))
                    .merge(collective, Traffic.of(collective, size, payload), Traffic::plus);
        }
    }

    /**
     * Returns who has issued something, in the order of the first calls.
     *
     * @return the places
     */
    public synchronized Set<Place> getPlaces() {
        return new LinkedHashSet<>(entries.keySet());
    }

    /**
     * Returns what was issued at one place.
     *
     * @param issuer who issues it
     * @param direction what the rank is doing
     * @return the traffic by operation, empty if there is none
     */
    public synchronized Map<Collective, Traffic> get(String issuer, Direction direction) {
        return Map.copyOf(entries.getOrDefault(new Place(issuer, direction), Map.of()));
    }

    /**
     * Returns the sum of some directions.
     *
     * @param directions what the rank is doing; all if none is given
     * @return the traffic of all operations
     */
    public synchronized Traffic getTotal(Direction... directions) {
        Set<Direction> counted = Set.of(directions.length == 0 ? Direction.values() : directions);
        return entries.entrySet().stream()
                .filter(entry -> counted.contains(entry.getKey().direction()))
                .flatMap(entry -> entry.getValue().values().stream())
                .reduce(Traffic.NONE, Traffic::plus);
    }

    /** Forgets all. */
    public synchronized void clear() {
        entries.clear();
    }

    /** {@inheritDoc} */
    @Override
    public synchronized boolean equals(Object other) {
        return other instanceof TrafficTable table && entries.equals(table.entries);
    }

    /** {@inheritDoc} */
    @Override
    public synchronized int hashCode() {
        return entries.hashCode();
    }

    /**
     * Returns the entries, a line each.
     *
     * @return such as {@code 02RowParallelLinear forward: 1 all-reduce of 384 bytes, 384 on the
     *     wire}
     */
    @Override
    public synchronized String toString() {
        StringBuilder text = new StringBuilder();
        entries.forEach(
                (place, traffic) ->
                        traffic.forEach(
                                (collective, sum) -> text.append(line(place, collective, sum))));
        return text.toString();
    }

    private static String line(Place place, Collective collective, Traffic sum) {
        return String.format(
                Locale.ROOT,
                "%s %s: %d %s of %d bytes, %d on the wire%n",
                place.issuer,
                place.direction,
                sum.calls(),
                collective,
                sum.payload(),
                sum.wire());
    }
}
