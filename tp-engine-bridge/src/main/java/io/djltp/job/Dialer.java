package io.djltp.job;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.net.SocketException;
import java.net.SocketTimeoutException;
import java.net.StandardSocketOptions;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

/**
 * Connects to a {@link MemberAcceptor} and proves that this process is a member; tries again until
 * it is let in or the time is over.
 */
final class Dialer {

    private static final long MIN_PAUSE_MILLIS = 10;
    private static final long MAX_PAUSE_MILLIS = 250;
    private static final long ATTEMPT_NANOS = TimeUnit.SECONDS.toNanos(5);

    private final String host;
    private final List<Integer> ports;
    private final byte[] key;
    private final Introduction introduction;
    private boolean proved;
    private boolean refused;
    private IOException reason;

    /** What this process says to the other side. */
    interface Introduction {

        /** Returns the payload for a connection. */
        byte[] of(SocketChannel channel) throws IOException;
    }

    /**
     * Creates a dialer.
     *
     * @param host the host
     * @param ports the ports, of which the other side listens at one
     * @param key what members know
     * @param introduction what this process says
     */
    Dialer(String host, List<Integer> ports, byte[] key, Introduction introduction) {
        this.host = host;
        this.ports = ports;
        this.key = key;
        this.introduction = introduction;
    }

    /**
     * Connects.
     *
     * @param deadline until when to try, on the clock of {@link System#nanoTime}
     * @param stop whether to give up before that
     * @return the connection, in blocking mode
     * @throws IOException why the last attempt failed
     */
    SocketChannel dial(long deadline, BooleanSupplier stop)
            throws IOException, InterruptedException {
        long pause = MIN_PAUSE_MILLIS;
        while (true) {
            SocketChannel channel = round(deadline);
            if (channel != null) {
                return channel;
            }
            long left = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
            if (left <= 0 || stop.getAsBoolean()) {
                throw reason;
            }
            Thread.sleep(Math.min(left, pause));
            pause = Math.min(MAX_PAUSE_MILLIS, 2 * pause);
        }
    }

    /** Tries all ports, and keeps the reason of the one that came closest. */
    private SocketChannel round(long deadline) throws InterruptedException {
        IOException closest = null;
        boolean closestRefused = false;
        for (int port : ports) {
            try {
                return attempt(port, Math.min(deadline, System.nanoTime() + ATTEMPT_NANOS));
            } catch (IOException e) {
                // an interrupt closes the channel, and would look like a failed attempt
                if (Thread.interrupted()) {
                    throw new InterruptedException();
                }
                // that the time was over says less than what an attempt before it found
                boolean late = e instanceof SocketTimeoutException;
                if (closest == null || !late && (proved || !closestRefused)) {
                    closest = e;
                    closestRefused = proved && !late;
                }
            }
        }
        if (reason == null || !(closest instanceof SocketTimeoutException)) {
            reason = closest;
            refused = closestRefused;
        }
        return null;
    }

    /** Returns whether it failed because the other side did not take this one's proof. */
    boolean isRefused() {
        return refused;
    }

    /** Returns whether it failed because the name of the host is not known. */
    boolean isUnresolved() {
        return reason instanceof UnknownHostException;
    }

    private SocketChannel attempt(int port, long deadline) throws IOException {
        proved = false;
        // asks for the name anew each time: it may not be known yet
        InetSocketAddress address = new InetSocketAddress(host, port);
        if (address.isUnresolved()) {
            throw new UnknownHostException("unknown host " + host);
        }
        SocketChannel channel = SocketChannel.open();
        try {
            channel.socket().connect(address, millisUntil(deadline));
            if (channel.getLocalAddress().equals(channel.getRemoteAddress())) {
                // happens on loopback when the system gives out the very port that is dialled
                throw new SocketException("nobody listens");
            }
            channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
            shake(channel, deadline);
            channel.socket().setSoTimeout(0);
            return channel;
        } catch (IOException | RuntimeException e) {
            closeQuietly(channel);
            throw e;
        }
    }

    private void shake(SocketChannel channel, long deadline) throws IOException {
        byte[] hello = read(channel, Proof.hello().length, deadline);
        if (!Arrays.equals(hello, Proof.hello())) {
            throw new IOException(
                    "what listens there is no process of a job, or has another version of this"
                            + " library");
        }
        byte[] serverNonce = read(channel, Proof.BYTES, deadline);
        byte[] clientNonce = Proof.nonce();
        byte[] payload = introduction.of(channel);
        if (payload.length > Proof.MAX_PAYLOAD) {
            throw new IllegalStateException("A hello of " + payload.length + " bytes is too long");
        }
        ByteBuffer bytes = ByteBuffer.allocate(hello.length + 2 * Proof.BYTES + 2 + payload.length);
        bytes.put(hello).put(clientNonce).putShort((short) payload.length).put(payload);
        bytes.put(Proof.prove(key, Proof.CLIENT, serverNonce, clientNonce, payload)).flip();
        while (bytes.hasRemaining()) {
            channel.write(bytes);
        }
        // from here on, an end is the other side's answer
        proved = true;
        byte[] proof = read(channel, Proof.BYTES, deadline);
        if (!Proof.equal(
                proof, Proof.prove(key, Proof.SERVER, serverNonce, clientNonce, payload))) {
            throw new IOException("it does not know the secret");
        }
    }

    private byte[] read(SocketChannel channel, int count, long deadline) throws IOException {
        byte[] bytes = new byte[count];
        InputStream in = channel.socket().getInputStream();
        int length = 0;
        while (length < count) {
            channel.socket().setSoTimeout(millisUntil(deadline));
            int read = in.read(bytes, length, count - length);
            if (read < 0) {
                throw new EOFException("the connection was closed");
            }
            length += read;
        }
        return bytes;
    }

    private static int millisUntil(long deadline) throws SocketTimeoutException {
        long millis = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
        if (millis <= 0) {
            throw new SocketTimeoutException("no answer in time");
        }
        return (int) Math.min(millis, Integer.MAX_VALUE);
    }

    /** Says in short why a connection failed. */
    static String reason(IOException e) {
        return e.getMessage() == null ? e.getClass().getSimpleName() : e.getMessage();
    }

    static void closeQuietly(Closeable closeable) {
        try {
            if (closeable != null) {
                closeable.close();
            }
        } catch (IOException e) {
            // nothing is lost with it
            return;
        }
    }
}
