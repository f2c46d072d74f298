package io.djltp.internal.sockets;

import io.djltp.environment.MasterPort;
import io.djltp.internal.environment.Admission;
import io.djltp.job.Job;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.net.InetAddress;
import java.nio.ByteBuffer;
import java.nio.channels.CancelledKeyException;
import java.nio.channels.ClosedSelectorException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.LockSupport;

import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * The port at which the ranks of a process are reached while a mesh is connected.
 *
 * <p>The process draws a ticket and sends it to the others over TLS. From it follow 64 random bytes
 * for each two ranks: by the first 16 the connection is looked up, the next 32 it must show, and
 * the last 16 are the answer. Each opens one connection, once, that comes in by an {@link
 * Admission}.
 */
final class RankDoor implements Closeable, Runnable {

    /** How many bytes of a ticket there are. */
    static final int TICKET = 32;

    /** How many bytes the side that connects shows. */
    static final int SHOWN = 48;

    /** How many bytes it gets for it. */
    static final int ANSWER = 16;

    private static final int NAME = 16;
    private static final long ACCEPT_AGAIN_NANOS = 10_000_000;

    private final byte[] ticket = new byte[TICKET];
    private final ServerSocketChannel server;
    private final Selector selector = Selector.open();
    private final CompletableFuture<Void> ended = new CompletableFuture<>();
    private final Admission<SocketChannel> admission = new Admission<>(this::drop);

    private final Map<ByteBuffer, Pair> missing = new HashMap<>(); // by the names of connections
    private final Map<Pair, SocketChannel> arrived = new HashMap<>();

    /** Two ranks: the higher one connects to the lower one. */
    record Pair(int from, int to) {

        /** Returns the bytes by which the two know each other. */
        byte[] token(byte[] ticket) {
            try {
                Mac mac = Mac.getInstance("HmacSHA512");
                mac.init(new SecretKeySpec(ticket, mac.getAlgorithm()));
                return mac.doFinal(ByteBuffer.allocate(8).putInt(from).putInt(to).array());
            } catch (GeneralSecurityException e) {
                throw new IllegalStateException("Java without HMAC of SHA-512", e);
            }
        }
    }

    /** Opens a door for the ranks of a process, to which all higher ones connect. */
    RankDoor(Job job) throws IOException {
        new SecureRandom().nextBytes(ticket);
        for (int to = job.getFirstRank(); to < job.getFirstRank() + job.getLocalRanks(); to++) {
            for (int from = to + 1; from < job.getRanks(); from++) {
                Pair pair = new Pair(from, to);
                missing.put(ByteBuffer.wrap(pair.token(ticket), 0, NAME), pair);
            }
        }
        // of this process, the address at which it is to listen: the wildcard means all
        String address = job.getMember(job.getProcess()).address();
        server = MasterPort.bind(InetAddress.getByName(address), 0);
        server.configureBlocking(false);
        server.register(selector, SelectionKey.OP_ACCEPT);
        Thread thread = new Thread(this, "tp-job-ranks");
        thread.setDaemon(true);
        thread.start();
    }

    int port() {
        return MasterPort.getPort(server);
    }

    byte[] ticket() {
        return ticket.clone();
    }

    /** Waits until all have come, or some time has passed; returns whether they have. */
    synchronized boolean await(long millis) throws InterruptedException {
        if (!missing.isEmpty()) {
            wait(millis);
        }
        return missing.isEmpty();
    }

    /** Says which connection is still to come. */
    synchronized String describeMissing() {
        return missing.values().stream()
                .findFirst()
                .map(pair -> "rank %d has not connected to rank %d".formatted(pair.from, pair.to))
                .orElse("a connection that had come was lost");
    }

    /** {@inheritDoc} */
    @Override
    public void run() {
        try (selector;
                server) {
            while (server.isOpen()) {
                selector.select(this::handle, Admission.SWEEP.toMillis());
                admission.dropLate();
            }
        } catch (IOException | ClosedSelectorException e) {
            return; // closed
        } finally {
            try {
                admission.dropAll();
            } finally {
                ended.complete(null); // close() waits for it
            }
        }
    }

    void handle(SelectionKey key) {
        try {
            if (key.isAcceptable()) {
                accept();
            } else {
                read(key, (SocketChannel) key.channel());
            }
        } catch (CancelledKeyException e) {
            return; // dropped for one that came at the same time, or the port was closed
        } catch (IOException e) {
            if (key.channel() instanceof SocketChannel channel) {
                drop(channel); // most strangers end so
            } else {
                // no more files may be open: who has come stays, and would be met again at once
                LockSupport.parkNanos(ACCEPT_AGAIN_NANOS);
            }
        }
    }

    private void accept() throws IOException {
        SocketChannel channel = server.accept();
        if (channel != null) {
            channel.configureBlocking(false);
            // one byte more than there may be: a rank waits for the answer before it says more
            ByteBuffer shown = ByteBuffer.allocate(SHOWN + 1);
            channel.register(selector, SelectionKey.OP_READ, shown);
            admission.arrive(channel);
        }
    }

    private void read(SelectionKey key, SocketChannel channel) throws IOException {
        ByteBuffer shown = (ByteBuffer) key.attachment();
        if (channel.read(shown) < 0 || !shown.hasRemaining()) {
            throw new EOFException("a stranger");
        }
        if (shown.position() == SHOWN) {
            key.cancel();
            admission.leave(channel);
            letIn(channel, Arrays.copyOf(shown.array(), SHOWN));
        }
    }

    private synchronized void letIn(SocketChannel channel, byte[] shown) throws IOException {
        ByteBuffer name = ByteBuffer.wrap(shown, 0, NAME);
        Pair pair = missing.get(name);
        byte[] token = pair == null ? new byte[SHOWN] : pair.token(ticket);
        // takes the same time wherever they differ
        if (pair == null || !MessageDigest.isEqual(Arrays.copyOf(token, SHOWN), shown)) {
            throw new IOException("a stranger");
        }
        channel.socket().setTcpNoDelay(true);
        channel.write(ByteBuffer.wrap(token, SHOWN, ANSWER));
        missing.remove(name);
        arrived.put(pair, channel);
        notifyAll();
    }

    private void drop(SocketChannel channel) {
        admission.leave(channel);
        RankSockets.closeQuietly(channel);
    }

    /** Closes the port, and gives away all that have come, in blocking mode. */
    Map<Pair, SocketChannel> take() throws IOException {
        close();
        for (SocketChannel channel : arrived.values()) {
            channel.configureBlocking(true);
        }
        return arrived;
    }

    /** Closes the port. Those that have come stay. */
    @Override
    public void close() throws IOException {
        server.close();
        selector.wakeup();
        ended.join(); // shortly, interrupted or not: then they are no longer the selector's
    }
}
