package io.djltp.job;

import java.time.Duration;
import java.util.List;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;

/** Looks regularly whether the peers have been heard, on a thread of its own. */
final class HeartbeatMonitor {

    private static final long MAX_TICK_MILLIS = 500;

    private final List<Link> links;
    private final long timeoutNanos;
    private final long tickMillis;
    private final BooleanSupplier over;
    private final Consumer<Link> silent;
    private final Runnable each;

    /**
     * Creates a monitor.
     *
     * @param links the connections to the peers
     * @param timeout after how long a silent peer counts as dead
     * @param over whether there is nothing to monitor any more
     * @param silent what to do with a peer that has not been heard for that long
     * @param each what to do each time
     */
    HeartbeatMonitor(
            List<Link> links,
            Duration timeout,
            BooleanSupplier over,
            Consumer<Link> silent,
            Runnable each) {
        this.links = List.copyOf(links);
        this.timeoutNanos = timeout.toNanos();
        this.tickMillis = Math.max(1, Math.min(MAX_TICK_MILLIS, timeout.toMillis() / 8));
        this.over = over;
        this.silent = silent;
        this.each = each;
    }

    void start() {
        Threads.start("heartbeats", this::run);
    }

    private void run() {
        long last = System.nanoTime();
        try {
            while (!over.getAsBoolean()) {
                Thread.sleep(tickMillis);
                long now = System.nanoTime();
                if (now - last > timeoutNanos / 2) {
                    // this process itself stood still: what the peers said meanwhile is yet to be
                    // read, and one that was given up finds that there
                    links.forEach(Link::touch);
                } else {
                    look(now);
                }
                last = now;
                each.run();
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void look(long now) {
        for (Link link : links) {
            if (!link.isEnded() && now - link.heard() > timeoutNanos) {
                silent.accept(link);
            }
        }
    }
}
