package io.djltp.job;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.net.SocketAddress;
import java.nio.channels.ServerSocketChannel;
import java.util.concurrent.TimeUnit;

/**
 * Counts the connections that were not let in, and says once in a while that they come: one line
 * for each would be theirs to flood.
 */
final class RefusalLog {

    private static final Logger logger = LoggerFactory.getLogger(RefusalLog.class);

    private static final long REPORT_NANOS = TimeUnit.SECONDS.toNanos(60);

    private final ServerSocketChannel server;
    // counted on one thread, read on others
    private volatile long malformed;
    private volatile long wrongKeys;
    private long reported;
    private long lastReport = System.nanoTime() - REPORT_NANOS;
    private IOException acceptError;

    RefusalLog(ServerSocketChannel server) {
        this.server = server;
    }

    /** Counts one that was none of this protocol, or too slow. */
    void countMalformed() {
        malformed++;
    }

    /** Counts one that knows another key. */
    void countWrongKey() {
        wrongKeys++;
    }

    /** Notes why connections could not be accepted. */
    void noteAcceptError(IOException error) {
        acceptError = error;
    }

    long malformed() {
        return malformed;
    }

    long wrongKeys() {
        return wrongKeys;
    }

    /** Writes what has come since the last time, if that was long enough ago. */
    void report() {
        long count = wrongKeys + malformed;
        boolean nothing = count == reported && acceptError == null;
        if (nothing || System.nanoTime() - lastReport < REPORT_NANOS) {
            return;
        }
        lastReport = System.nanoTime();
        reported = count;
        SocketAddress port = server.socket().getLocalSocketAddress();
        if (acceptError != null) {
            logger.warn("Connections to {} could not be accepted", port, acceptError);
            acceptError = null;
        }
        if (wrongKeys > 0) {
            logger.warn("{} connections to {} were refused: wrong secret", wrongKeys, port);
        }
        logger.debug("{} connections to {} were none of this job", malformed, port);
    }
}
