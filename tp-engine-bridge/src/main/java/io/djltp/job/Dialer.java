package io.djltp.job;

import java.io.Closeable;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.SocketException;
import java.net.SocketTimeoutException;
import java.net.StandardSocketOptions;
import java.net.UnknownHostException;
import java.nio.channels.SocketChannel;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

/**
 * Connects to another process, again and again until it is there.
 *
 * @param <T> what a connection becomes
 */
final class Dialer<T> {

    private static final long MIN_PAUSE_MILLIS = 10;
    private static final long MAX_PAUSE_MILLIS = 250;
    private static final long ATTEMPT_NANOS = TimeUnit.SECONDS.toNanos(5);

    private final String host;
    private final List<Integer> ports;
    private final Greeting<T> greeting;
    private IOException reason;

    /** What is said on a new connection. */
    interface Greeting<T> {

        /** Returns what the connection becomes; if it throws, the connection is closed. */
        T greet(SocketChannel channel, long deadline) throws IOException, InterruptedException;
    }

    /** The other side does not know what this one knows. */
    static final class RefusedException extends IOException {

        private static final long serialVersionUID = 1L;

        RefusedException() {
            super("it does not know the secret");
        }
    }

    /**
     * Creates a dialer.
     *
     * @param host the host
     * @param ports the ports, of which the other side listens at one
     * @param greeting what is said first
     */
    Dialer(String host, List<Integer> ports, Greeting<T> greeting) {
        this.host = host;
        this.ports = ports;
        this.greeting = greeting;
    }

    /**
     * Connects.
     *
     * @param deadline until when to try, on the clock of {@link System#nanoTime}
     * @param stop whether to give up before that
     * @return what the connection has become
     * @throws IOException why the last attempt failed
     */
    T dial(long deadline, BooleanSupplier stop) throws IOException, InterruptedException {
        long pause = MIN_PAUSE_MILLIS;
        while (true) {
            T connection = round(deadline);
            if (connection != null) {
                return connection;
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
    private T round(long deadline) throws InterruptedException {
        IOException closest = null;
        for (int port : ports) {
            try {
                return attempt(port, Math.min(deadline, System.nanoTime() + ATTEMPT_NANOS));
            } catch (IOException e) {
                // an interrupt closes the channel, and would look like a failed attempt
                if (Thread.interrupted()) {
                    throw new InterruptedException();
                }
                if (closest == null || weight(e) >= weight(closest)) {
                    closest = e;
                }
            }
        }
        if (reason == null || weight(closest) > 0) {
            reason = closest;
        }
        return null;
    }

    /** That the time was over says less than what an attempt before it found. */
    private static int weight(IOException e) {
        int known = e instanceof RefusedException ? 2 : 1;
        return e instanceof SocketTimeoutException ? 0 : known;
    }

    /** Returns whether it failed because the two sides have not the same secret. */
    boolean isRefused() {
        return reason instanceof RefusedException;
    }

    /** Returns whether it failed because the name of the host is not known. */
    boolean isUnresolved() {
        return reason instanceof UnknownHostException;
    }

    private T attempt(int port, long deadline) throws IOException, InterruptedException {
        // asks for the name anew each time: it may not be known yet
        InetSocketAddress address = new InetSocketAddress(host, port);
        if (address.isUnresolved()) {
            throw new UnknownHostException("unknown host " + host);
        }
        SocketChannel channel = SocketChannel.open();
        boolean done = false;
        try {
            channel.socket().connect(address, millisUntil(deadline));
            if (channel.getLocalAddress().equals(channel.getRemoteAddress())) {
                // happens on loopback when the system gives out the very port that is dialled
                throw new SocketException("nobody listens");
            }
            channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
            T connection = greeting.greet(channel, deadline);
            done = true;
            return connection;
        } finally {
            if (!done) {
                closeQuietly(channel);
            }
        }
    }

    static int millisUntil(long deadline) throws SocketTimeoutException {
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
