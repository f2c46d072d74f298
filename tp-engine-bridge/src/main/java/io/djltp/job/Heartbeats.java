package io.djltp.job;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * Says regularly that this process lives and what it is doing, and looks whether its peers live, on
 * the thread of the job's connections.
 */
final class Heartbeats implements Runnable {

    private static final Logger logger = LoggerFactory.getLogger(Heartbeats.class);
    private static final long MAX_TICK_NANOS = 500_000_000;
    private static final int TICKS_OF_HEARTBEAT = 2;
    private static final int SEVERAL = 3;
    private static final int MAX_STATUS = 4096;

    private final JobLoop loop;
    private final JobState state;
    private Supplier<Collection<Link>> links = List::of;
    private Consumer<Link> silent = link -> {};
    private volatile Duration timeout;
    private long last = System.nanoTime();
    private long ticks;

    private volatile @Nullable Supplier<String> supplier;
    private volatile String status = "";
    private boolean asks;

    /**
     * Creates the heartbeats of a process.
     *
     * @param loop the thread of its connections
     * @param state whether its job lives
     * @param timeout after how long a silent peer counts as dead
     */
    Heartbeats(JobLoop loop, JobState state, Duration timeout) {
        this.loop = loop;
        this.state = state;
        this.timeout = timeout;
    }

    /**
     * Begins to look and to speak.
     *
     * @param links the connections to the peers, at each time
     * @param silent what to do with a peer that has not been heard for the time-out
     */
    void start(Supplier<Collection<Link>> links, Consumer<Link> silent) {
        this.links = links;
        this.silent = silent;
        schedule();
    }

    private void schedule() {
        loop.schedule(Duration.ofNanos(tick(timeout)), this);
    }

    private static long tick(Duration timeout) {
        return Math.max(1_000_000, Math.min(MAX_TICK_NANOS, timeout.toNanos() / 8));
    }

    /** Returns after how long a silent peer counts as dead. */
    Duration timeout() {
        return timeout;
    }

    void setTimeout(Duration timeout) {
        this.timeout = timeout;
    }

    /**
     * Returns the nanoseconds of several heartbeats. Who has left out as many does not just think.
     */
    long several() {
        return SEVERAL * TICKS_OF_HEARTBEAT * tick(timeout);
    }

    /** {@inheritDoc} */
    @Override
    public void run() {
        try {
            beat(System.nanoTime());
        } catch (RuntimeException e) {
            logger.warn("A heartbeat of the job failed; the next one follows", e);
        } finally {
            schedule();
        }
    }

    private void beat(long now) {
        Collection<Link> all = links.get();
        if (now - last > timeout.toNanos() / 2) {
            // this process itself stood still: what the peers said meanwhile is yet to be read,
            // also that they have given it up
            all.forEach(Link::touch);
        } else {
            ticks++;
            if (ticks % TICKS_OF_HEARTBEAT == 1) {
                byte[] heartbeat = new Message(Message.Type.HEARTBEAT, status).encode();
                all.forEach(link -> link.sendHeartbeat(heartbeat));
            }
            // by the time of the beat: this process may have stood still since
            all.stream().filter(link -> link.isSilent(now, timeout.toNanos())).forEach(silent);
        }
        last = now;
    }

    /** Returns what this process is doing. */
    String status() {
        return status;
    }

    /**
     * Sets what this process says that it is doing. The supplier runs on a thread of its own: if it
     * blocks, the status stays as it was, and the heart goes on.
     */
    synchronized void setStatus(Supplier<String> text) {
        supplier = text;
        if (!asks) {
            asks = true;
            JobState.startThread("status", this::ask);
        }
    }

    private void ask() {
        try {
            while (!state.isOver()) {
                try {
                    Supplier<String> now = supplier;
                    String text = now == null ? null : now.get();
                    status = text == null ? "" : ErrorTexts.cut(text, MAX_STATUS);
                } catch (RuntimeException e) {
                    logger.debug("The status of the ranks cannot be told", e);
                    status = "";
                }
                Thread.sleep(Math.max(1, Math.min(1000, timeout.toMillis() / 4)));
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
