package io.djltp.internal.environment;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

/**
 * The connections of a port that are not let in yet. Anyone may connect to it, so that what
 * strangers can take is bounded: a connection has {@link #PATIENCE} to be let in, and when more
 * than {@link #MAX_PENDING} are at it, the oldest is dropped. Used by one thread.
 *
 * @param <C> a connection
 */
public final class Admission<C> {

    /** How many connections may be waiting to be let in. */
    public static final int MAX_PENDING = 512;

    /** How long a connection may take until it is let in. */
    public static final Duration PATIENCE = Duration.ofSeconds(5);

    /** How often to look for those that have taken too long. */
    public static final Duration SWEEP = Duration.ofMillis(250);

    private final Map<C, Long> pending = new LinkedHashMap<>(); // since when, in order of arrival
    private final Consumer<C> drop;

    /**
     * Begins without connections.
     *
     * @param drop ends a connection that is not let in, and lets it {@link #leave}
     */
    public Admission(Consumer<C> drop) {
        this.drop = drop;
    }

    /**
     * Notes that a connection has come.
     *
     * @param connection the connection
     */
    public void arrive(C connection) {
        pending.put(connection, System.nanoTime());
        if (pending.size() > MAX_PENDING) {
            drop.accept(pending.keySet().iterator().next());
        }
    }

    /**
     * Notes that a connection waits no more: it was let in, or has ended.
     *
     * @param connection the connection
     * @return whether it was waiting
     */
    public boolean leave(C connection) {
        return pending.remove(connection) != null;
    }

    /** Drops the connections that have taken too long. */
    public void dropLate() {
        long late = System.nanoTime() - PATIENCE.toNanos();
        List.copyOf(pending.entrySet()).stream()
                .filter(entry -> entry.getValue() - late < 0)
                .forEach(entry -> drop.accept(entry.getKey()));
    }

    /** Drops all connections. */
    public void dropAll() {
        List.copyOf(pending.keySet()).forEach(drop);
    }
}
