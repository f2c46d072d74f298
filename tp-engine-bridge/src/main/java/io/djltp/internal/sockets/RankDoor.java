package io.djltp.internal.sockets;

import io.djltp.environment.Admission;
import io.djltp.environment.MasterPort;

import java.io.Closeable;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedSelectorException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;

/**
 * The port at which the ranks of a process are reached while a mesh is connected. A connection that
 * shows a {@linkplain RankTokens token} is let in, by an {@link Admission}.
 */
final class RankDoor implements Closeable, Runnable {

    private static final long ACCEPT_AGAIN_NANOS = 10_000_000;

    private final RankTokens tokens;
    private final ServerSocketChannel server;
    private final Selector selector = Selector.open();
    private final Admission<SocketChannel> admission = new Admission<>(this::drop);
    private final List<Shown> complete = new ArrayList<>();
    private final Map<RankTokens.Pair, SocketChannel> arrived = new HashMap<>();
    private boolean taken;

    /** The bytes that a connection has shown so far. */
    private record Shown(SelectionKey key, ByteBuffer bytes) {

        SocketChannel channel() {
            return (SocketChannel) key.channel();
        }
    }

    /**
     * Opens a door.
     *
     * @param address where to listen: an address of this machine, or the wildcard for all
     * @param tokens who is let in
     */
    RankDoor(String address, RankTokens tokens) throws IOException {
        this.tokens = tokens;
        server = MasterPort.bind(InetAddress.getByName(address), 0);
        server.configureBlocking(false);
        server.register(selector, SelectionKey.OP_ACCEPT);
        Thread thread = new Thread(this, "tp-job-ranks");
        thread.setDaemon(true);
        thread.start();
    }

    /** Returns where it listens. */
    InetSocketAddress address() {
        return (InetSocketAddress) server.socket().getLocalSocketAddress();
    }

    /** {@inheritDoc} */
    @Override
    public void run() {
        try (selector;
                server) {
            while (server.isOpen()) {
                selector.select(this::handle, Admission.SWEEP.toMillis());
                if (!complete.isEmpty()) {
                    // frees the channels of their keys: only then can they block again
                    selector.selectNow(key -> {});
                    complete.forEach(this::letIn);
                    complete.clear();
                }
                admission.dropLate();
            }
        } catch (IOException | ClosedSelectorException e) {
            return; // closed
        } finally {
            admission.dropAll();
        }
    }

    private void handle(SelectionKey key) {
        try {
            if (key.isAcceptable()) {
                accept();
            } else {
                read((Shown) key.attachment());
            }
        } catch (IOException e) {
            if (key.attachment() != null) {
                drop(((Shown) key.attachment()).channel()); // most strangers end so
            } else {
                // no more files may be open: who has come stays, and would be met again at once
                LockSupport.parkNanos(ACCEPT_AGAIN_NANOS);
            }
        }
    }

    private void accept() throws IOException {
        SocketChannel channel = server.accept();
        if (channel == null) {
            return;
        }
        channel.configureBlocking(false);
        SelectionKey key = channel.register(selector, SelectionKey.OP_READ);
        // one byte more than there may be: a rank waits for the answer before it says more
        ByteBuffer bytes = ByteBuffer.allocate(RankTokens.SHOWN + 1);
        Shown shown = new Shown(key, bytes);
        key.attach(shown);
        admission.arrive(channel);
    }

    private void read(Shown shown) throws IOException {
        boolean ended = shown.channel().read(shown.bytes) < 0;
        if (ended || !shown.bytes.hasRemaining()) {
            drop(shown.channel());
        } else if (shown.bytes.position() == RankTokens.SHOWN) {
            admission.leave(shown.channel());
            shown.key.cancel();
            complete.add(shown);
        }
    }

    private void letIn(Shown shown) {
        byte[] bytes = new byte[RankTokens.SHOWN];
        shown.bytes.flip().get(bytes);
        RankTokens.Pair pair = tokens.admit(bytes);
        try {
            if (pair == null) {
                throw new IOException("a stranger");
            }
            SocketChannel channel = shown.channel();
            channel.configureBlocking(true);
            channel.socket().setTcpNoDelay(true);
            channel.write(ByteBuffer.wrap(tokens.answer(pair)));
            arrive(pair, channel);
        } catch (IOException e) {
            RankSockets.closeQuietly(shown.channel());
        }
    }

    private void drop(SocketChannel channel) {
        admission.leave(channel);
        RankSockets.closeQuietly(channel);
    }

    private synchronized void arrive(RankTokens.Pair pair, SocketChannel channel) {
        arrived.put(pair, channel);
        notifyAll();
        if (taken) {
            RankSockets.closeQuietly(channel);
        }
    }

    /** Waits until so many have come, or some time has passed; returns whether they have. */
    synchronized boolean await(int count, long millis) throws InterruptedException {
        if (arrived.size() < count) {
            wait(millis);
        }
        return arrived.size() == count;
    }

    /** Gives away all that have come. Those that come later are closed. */
    synchronized Map<RankTokens.Pair, SocketChannel> take() {
        taken = true;
        return Map.copyOf(arrived);
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws IOException {
        server.close();
        selector.wakeup();
    }
}
