package io.djltp.job;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

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

    private static final Logger logger = LoggerFactory.getLogger(Heartbeats.class);

    private static final long MAX_TICK_NANOS = 500_000_000;
    private static final int TICKS_OF_HEARTBEAT = 2;
    private static final int SEVERAL = 3;

    private final JobContext local;
    private final Supplier<Collection<Link>> links;
    private final Consumer<Link> silent;
    private volatile long timeoutNanos;
    private long last = System.nanoTime();
    private long ticks;

    /**
     * Creates the heartbeats of a process.
     *
     * @param local the process
     * @param links the connections to the peers, at each time
     * @param silent what to do with a peer that has not been heard for the time-out
     */
    Heartbeats(JobContext local, Supplier<Collection<Link>> links, Consumer<Link> silent) {
        this.local = local;
        this.links = links;
        this.silent = silent;
        setTimeout(local.options().getHeartbeatTimeout());
    }

    /** Sets after how long a silent peer counts as dead. */
    void setTimeout(Duration timeout) {
        timeoutNanos = timeout.toNanos();
        local.status().setHeartbeatTimeout(timeout);
    }

    /** Looks and speaks the next time. */
    void start() {
        local.loop().thread().schedule(this, tick(timeoutNanos), TimeUnit.NANOSECONDS);
    }

    private static long tick(long timeoutNanos) {
        return Math.max(1_000_000, Math.min(MAX_TICK_NANOS, timeoutNanos / 8));
    }

    /**
     * Returns the nanoseconds of several heartbeats. Who has left out as many does not just think.
     *
     * @param timeout after how long a silent process counts as dead, which is longer
     */
    static long several(Duration timeout) {
        return SEVERAL * TICKS_OF_HEARTBEAT * tick(timeout.toNanos());
    }

    /** {@inheritDoc} */
    @Override
    public void run() {
        try {
            beat(System.nanoTime());
        } catch (RuntimeException e) {
            logger.warn("A heartbeat of the job failed; the next one follows", e);
        } finally {
            start();
        }
    }

    private void beat(long now) {
        Collection<Link> all = links.get();
        if (now - last > timeoutNanos / 2) {
            // this process itself stood still: what the peers said meanwhile is yet to be read,
            // also that they have given it up
            all.forEach(Link::touch);
        } else {
            ticks++;
            if (ticks % TICKS_OF_HEARTBEAT == 1) {
                byte[] heartbeat =
                        new Message(Message.Type.HEARTBEAT, local.status().get()).encode();
                all.forEach(link -> link.sendHeartbeat(heartbeat));
            }
            all.stream().filter(link -> link.isSilent(timeoutNanos)).forEach(silent);
        }
        last = now;
    }
}
