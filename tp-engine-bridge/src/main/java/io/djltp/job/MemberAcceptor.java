package io.djltp.job;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.net.StandardSocketOptions;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/**
 * Accepts connections and lets in those that prove that they are members, on one thread.
 *
 * <p>Anyone may connect to the port, so that what strangers can take is bounded: a connection has
 * {@link #PATIENCE} and a few kilobytes to prove itself, and when more than {@link #MAX_PENDING}
 * are at it, the oldest is dropped. Members are done within one round trip, and come again if they
 * are dropped.
 */
final class MemberAcceptor {

    /** How many connections may be unproven at a time. */
    static final int MAX_PENDING = 512;

    /** How long a connection may take to prove itself. */
    static final Duration PATIENCE = Duration.ofSeconds(5);

    private static final Logger logger = LoggerFactory.getLogger(MemberAcceptor.class);

    // so that those who are at it are heard between the arrivals of a flood
    private static final int MAX_ACCEPTS = 64;
    private static final long ACCEPT_PAUSE_MILLIS = 10;
    private static final long CLOSE_MILLIS = 1000;
    private static final long MAX_WAIT_MILLIS = 250;

    private final ServerSocketChannel server;
    private final byte[] key;
    private final Handler handler;
    private final Selector selector;
    private final SelectionKey acceptKey;
    // in the order of arrival, which is that of the deadlines
    private final Set<SelectionKey> pending = new LinkedHashSet<>();
    private Thread thread;
    private volatile boolean closed;
    private final RefusalLog refusals;

    private long acceptAgain;

    /** What to do with a connection that has proved itself. */
    interface Handler {

        /**
         * Takes a connection over. Called on the thread that accepts, and must not wait.
         *
         * @param channel the connection, in blocking mode
         * @param payload what it said
         */
        void accept(SocketChannel channel, byte[] payload) throws IOException;
    }

    /**
     * Creates an acceptor.
     *
     * @param server the bound channel, which is closed with the acceptor
     * @param key what members know
     * @param handler what to do with members
     */
    MemberAcceptor(ServerSocketChannel server, byte[] key, Handler handler) throws IOException {
        this.server = server;
        this.key = key;
        this.handler = handler;
        refusals = new RefusalLog(server);
        // loads the class as long as there are file descriptors to load it with
        Dialer.closeQuietly(null);
        server.configureBlocking(false);
        selector = Selector.open();
        acceptKey = server.register(selector, SelectionKey.OP_ACCEPT);
    }

    void start(String name) {
        thread = Threads.start(name, this::run);
    }

    /** Returns how many connections did not prove themselves because they know another key. */
    long wrongKeys() {
        return refusals.wrongKeys();
    }

    /** Returns how many connections were none of this protocol, or too slow. */
    long malformed() {
        return refusals.malformed();
    }

    void close() {
        closed = true;
        selector.wakeup();
        Dialer.closeQuietly(server);
        if (thread == null) {
            closeAll();
            return;
        }
        try {
            // the port is free once the thread has let go of it
            thread.join(CLOSE_MILLIS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void run() {
        try {
            while (!closed) {
                selector.select(waitMillis());
                if (!closed) {
                    round();
                }
            }
        } catch (IOException | RuntimeException e) {
            if (!closed) {
                logger.error("The thread that accepts the processes of the job ended", e);
            }
        } finally {
            closeAll();
        }
    }

    private void round() {
        dropLate();
        for (SelectionKey ready : selector.selectedKeys()) {
            if (ready == acceptKey) {
                acceptSome();
            } else if (ready.isValid()) {
                read(ready);
            }
        }
        selector.selectedKeys().clear();
        if (acceptKey.interestOps() == 0 && System.nanoTime() - acceptAgain >= 0) {
            acceptKey.interestOps(SelectionKey.OP_ACCEPT);
        }
        refusals.report();
    }

    private long waitMillis() {
        if (acceptKey.interestOps() == 0) {
            return ACCEPT_PAUSE_MILLIS;
        }
        if (pending.isEmpty()) {
            return 0;
        }
        long left = handshake(pending.iterator().next()).deadline() - System.nanoTime();
        long millis = TimeUnit.NANOSECONDS.toMillis(left) + 1;
        return Math.max(1, Math.min(MAX_WAIT_MILLIS, millis));
    }

    private void acceptSome() {
        for (int i = 0; i < MAX_ACCEPTS; i++) {
            SocketChannel channel = null;
            try {
                channel = server.accept();
                if (channel == null) {
                    return;
                }
                greet(channel);
            } catch (IOException e) {
                Dialer.closeQuietly(channel);
                if (channel == null) {
                    pauseAccepting(e);
                    return;
                }
                refusals.countMalformed();
            }
        }
    }

    private void greet(SocketChannel channel) throws IOException {
        channel.configureBlocking(false);
        channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        Handshake handshake = new Handshake(channel, key, System.nanoTime() + PATIENCE.toNanos());
        handshake.greet();
        pending.add(channel.register(selector, SelectionKey.OP_READ, handshake));
        if (pending.size() > MAX_PENDING) {
            dropOldest();
        }
    }

    /**
     * Out of file descriptors, most likely: lets the older half of those who are at it go, and
     * gives the others time.
     */
    private void pauseAccepting(IOException e) {
        if (closed) {
            return;
        }
        refusals.noteAcceptError(e);
        for (int i = (pending.size() + 1) / 2; i > 0; i--) {
            dropOldest();
        }
        acceptKey.interestOps(0);
        acceptAgain = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(ACCEPT_PAUSE_MILLIS);
    }

    private void read(SelectionKey ready) {
        Handshake handshake = handshake(ready);
        try {
            switch (handshake.read()) {
                case PENDING:
                    break;
                case MEMBER:
                    welcome(ready, handshake);
                    break;
                case WRONG_KEY:
                    refusals.countWrongKey();
                    drop(ready);
                    break;
                default:
                    refusals.countMalformed();
                    drop(ready);
                    break;
            }
        } catch (IOException | RuntimeException e) {
            // most end so, and are counted: a line for each would be theirs to flood
            refusals.countMalformed();
            drop(ready);
        }
    }

    private void welcome(SelectionKey ready, Handshake handshake) throws IOException {
        pending.remove(ready);
        ready.cancel();
        // a cancelled key must be gone before the channel may block
        handshake.channel().configureBlocking(true);
        handler.accept(handshake.channel(), handshake.payload());
    }

    private void dropLate() {
        long now = System.nanoTime();
        Iterator<SelectionKey> oldest = pending.iterator();
        while (oldest.hasNext()) {
            SelectionKey next = oldest.next();
            if (handshake(next).deadline() - now > 0) {
                return;
            }
            oldest.remove();
            refusals.countMalformed();
            drop(next);
        }
    }

    private void dropOldest() {
        SelectionKey oldest = pending.iterator().next();
        refusals.countMalformed();
        drop(oldest);
    }

    private void drop(SelectionKey dropped) {
        pending.remove(dropped);
        dropped.cancel();
        Dialer.closeQuietly(dropped.channel());
    }

    private void closeAll() {
        for (SelectionKey each : Set.copyOf(pending)) {
            drop(each);
        }
        Dialer.closeQuietly(server);
        Dialer.closeQuietly(selector);
    }

    private static Handshake handshake(SelectionKey key) {
        return (Handshake) key.attachment();
    }
}
