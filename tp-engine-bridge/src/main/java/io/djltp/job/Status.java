package io.djltp.job;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.time.Duration;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;

/**
 * What this process tells with its heartbeats. The caller's supplier runs on a thread of its own:
 * if it blocks, the status stays as it was, and the heart goes on.
 */
final class Status {

    private static final Logger logger = LoggerFactory.getLogger(Status.class);

    private static final int MAX_STATUS = 4096;

    private final BooleanSupplier over;
    private volatile Supplier<String> supplier;
    private volatile String text = "";
    private volatile long intervalMillis = 1000;
    private boolean started;

    Status(BooleanSupplier over) {
        this.over = over;
    }

    String get() {
        return text;
    }

    /** Sets after how long a silent process counts as dead, which says how often it speaks. */
    void setHeartbeatTimeout(Duration timeout) {
        intervalMillis = Math.max(1, Math.min(1000, timeout.toMillis() / 4));
    }

    synchronized void set(Supplier<String> status) {
        supplier = status;
        if (!started) {
            started = true;
            Threads.start("status", this::run);
        }
    }

    private void run() {
        try {
            while (!over.getAsBoolean()) {
                update();
                Thread.sleep(intervalMillis);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void update() {
        try {
            Supplier<String> now = supplier;
            String status = now == null ? null : now.get();
            text = status == null ? "" : ErrorTexts.cut(status, MAX_STATUS);
        } catch (RuntimeException e) {
            logger.debug("The status of the ranks cannot be told", e);
            text = "";
        }
    }
}
