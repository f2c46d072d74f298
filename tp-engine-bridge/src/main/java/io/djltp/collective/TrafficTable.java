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
public final class TrafficTable implements CallListener {

    private final Map<Place, Map<Collective, Traffic>> entries = new LinkedHashMap<>();

    /** Creates a table of nothing. */
    public TrafficTable() {}

    /**
     * Who issues an operation, and when.
     *
     * @param issuer the block, by its path in the network, the loss, or the gradient
     * @param direction what the rank is doing
     */
    public record Place(String issuer, Direction direction) {}

    /** {@inheritDoc} */
    @Override
    public void called(CollectiveCall call, int size, Direction direction) {
        add(call.getIssuer(), direction, call.getCollective(), size, call.getPayload());
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
     * Returns the sum of all directions.
     *
     * @return the traffic of all operations
     */
    public synchronized Traffic getTotal() {
        return entries.values().stream()
                .flatMap(each -> each.values().stream())
                .reduce(Traffic.NONE, Traffic::plus);
    }

    /**
     * Returns the sum of one direction.
     *
     * @param direction what the rank is doing
     * @return the traffic of all operations
     */
    public synchronized Traffic getTotal(Direction direction) {
        return entries.entrySet().stream()
                .filter(entry -> entry.getKey().direction() == direction)
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
                                (collective, sum) ->
                                        text.append(
                                                String.format(
                                                        Locale.ROOT,
                                                        "%s %s: %d %s of %d bytes, %d on the"
                                                                + " wire%n",
                                                        place.issuer,
                                                        place.direction,
                                                        sum.calls(),
                                                        collective,
                                                        sum.payload(),
                                                        sum.wire()))));
        return text.toString();
    }
}
