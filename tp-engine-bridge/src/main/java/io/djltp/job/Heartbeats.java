package io.djltp.job;

import io.netty.channel.EventLoop;

import java.time.Duration;
import java.util.Collection;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * Says regularly that this process lives, and looks whether its peers do, on the thread of the
 * job's connections.
 */
final class Heartbeats implements Runnable {

    private static final long MAX_TICK_MILLIS = 500;

    private final Supplier<Collection<Link>> links;
    private final Status status;
    private final Consumer<Link> silent;
    private final EventLoop loop;
    private long timeoutNanos;
    private long tickMillis;
    private long last = System.nanoTime();
    private boolean odd;

    /**
     * Creates the heartbeats of a process.
     *
     * @param loop where the connections are
     * @param links the connections to the peers, at each time
     * @param status what is told with each heartbeat
     * @param silent what to do with a peer that has not been heard for the time-out
     */
    Heartbeats(
            EventLoop loop,
            Supplier<Collection<Link>> links,
            Status status,
            Consumer<Link> silent) {
        this.loop = loop;
        this.links = links;
        this.status = status;
        this.silent = silent;
    }

    /** Starts. */
    void start(Duration timeout) {
        setTimeout(timeout);
        loop.schedule(this, tickMillis, TimeUnit.MILLISECONDS);
    }

    /** Sets after how long a silent peer counts as dead. */
    void setTimeout(Duration timeout) {
        timeoutNanos = timeout.toNanos();
        tickMillis = Math.max(1, Math.min(MAX_TICK_MILLIS, timeout.toMillis() / 8));
    }

    /** {@inheritDoc} */
    @Override
    public void run() {
        long now = System.nanoTime();
        Collection<Link> all = links.get();
        if (now - last > timeoutNanos / 2) {
            // this process itself stood still: what the peers said meanwhile is yet to be read, and
            // one that was given up finds that there
            all.forEach(Link::touch);
        } else {
            odd = !odd;
            if (odd) {
                byte[] heartbeat = new Message(Message.Type.HEARTBEAT, status.get()).encode();
                all.forEach(link -> link.sendHeartbeat(heartbeat));
            }
            all.stream().filter(link -> link.isSilent(timeoutNanos)).forEach(silent);
        }
        last = now;
        loop.schedule(this, tickMillis, TimeUnit.MILLISECONDS);
    }
}
