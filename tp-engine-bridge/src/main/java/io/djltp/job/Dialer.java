package io.djltp.job;

import io.djltp.environment.LaunchEnvironment;
import io.netty.buffer.UnpooledByteBufAllocator;
import io.netty.channel.socket.nio.NioSocketChannel;

import java.io.EOFException;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.SocketException;
import java.net.SocketTimeoutException;
import java.net.StandardSocketOptions;
import java.net.UnknownHostException;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

import javax.net.ssl.SSLHandshakeException;

/** Connects a member to process 0, again and again until it is there. */
final class Dialer {

    private static final long MIN_PAUSE_MILLIS = 10;
    private static final long MAX_PAUSE_MILLIS = 250;
    private static final Duration ATTEMPT = Duration.ofSeconds(5);

    /**
     * The names of Slurm's nodes are there when its tasks start, or will never be. Java keeps it in
     * mind for 10 seconds that a name was not found.
     */
    private static final Duration SLURM_NAME = Duration.ofSeconds(11);

    private static final String UNREACHABLE =
            "see whether process 0 was started there, and MASTER_ADDR and MASTER_PORT are the same"
                    + " on all processes";

    private final JobContext local;
    private final LaunchEnvironment environment;
    private final MasterAddress rendezvous;
    private final JobTls tls;
    private final long limit;
    private final Link.Events events;
    private final long start = System.nanoTime(); // of all attempts, also after a connection

    /**
     * Creates a dialer.
     *
     * @param local this process
     * @param rendezvous where process 0 is
     * @param limit the most bytes of a message that comes
     * @param events what to do with what happens on the connection
     */
    Dialer(JobContext local, MasterAddress rendezvous, long limit, Link.Events events) {
        this.local = local;
        this.rendezvous = rendezvous;
        this.limit = limit;
        this.events = events;
        environment = local.environment();
        tls = rendezvous.tls();
    }

    /**
     * Connects.
     *
     * @return the connection, on which both sides have proven that they know the secret
     * @throws JobFailedException with why the attempt that came closest failed
     */
    Link dial() throws InterruptedException {
        Duration timeout = local.options().getTimeout();
        IOException reason = null;
        for (long pause = MIN_PAUSE_MILLIS; ; pause = Math.min(MAX_PAUSE_MILLIS, 2 * pause)) {
            IOException closest = null;
            for (int port : environment.masterPorts()) {
                try {
                    return attempt(port, left(timeout));
                } catch (IOException e) {
                    // an interrupt closes the channel, and would look like a failed attempt
                    if (Thread.interrupted()) {
                        throw new InterruptedException();
                    }
                    closest = closest == null || weight(e) >= weight(closest) ? e : closest;
                }
            }
            reason = reason == null || weight(closest) > 0 ? closest : reason;
            boolean slurm = environment.launcher().equals("Slurm");
            boolean hopeless = slurm && reason instanceof UnknownHostException;
            Duration patience =
                    hopeless && SLURM_NAME.compareTo(timeout) < 0 ? SLURM_NAME : timeout;
            Duration left = left(patience);
            if (left.isZero()) {
                throw failure(reason, patience);
            }
            TimeUnit.MILLISECONDS.sleep(Math.min(pause, left.toMillis()));
        }
    }

    private Duration left(Duration time) {
        Duration left = time.minusNanos(System.nanoTime() - start);
        return left.toMillis() <= 0 ? Duration.ZERO : left;
    }

    /** That the time was over says less than what an attempt before it found. */
    private static int weight(IOException e) {
        int known = e instanceof SSLHandshakeException ? 2 : 1;
        return e instanceof SocketTimeoutException ? 0 : known;
    }

    private JobFailedException failure(IOException e, Duration time) {
        boolean refused = e instanceof SSLHandshakeException;
        String remedy = e instanceof UnknownHostException ? rendezvous.unresolved() : UNREACHABLE;
        String text =
                "Process %d %s process 0 at %s %s %s (%s): %s"
                        .formatted(
                                environment.process(),
                                refused ? "was refused by" : "cannot reach",
                                rendezvous.place(),
                                refused ? "for" : "within",
                                ErrorTexts.time(time),
                                ErrorTexts.reason(e),
                                refused ? rendezvous.whyRefused() : remedy);
        return new JobFailedException(text, -1, -1, e);
    }

    private Link attempt(int port, Duration left) throws IOException, InterruptedException {
        int millis = (int) Math.min(ATTEMPT.toMillis(), left.toMillis());
        if (millis <= 0) {
            throw new SocketTimeoutException("no answer in time");
        }
        // asks for the name anew each time: it may not be known yet
        InetSocketAddress address = new InetSocketAddress(environment.masterAddress(), port);
        if (address.isUnresolved()) {
            throw new UnknownHostException("unknown host " + environment.masterAddress());
        }
        SocketChannel channel = SocketChannel.open();
        boolean done = false;
        try {
            channel.socket().connect(address, millis);
            if (channel.getLocalAddress().equals(channel.getRemoteAddress())) {
                // happens on loopback when the system gives out the very port that is dialled
                throw new SocketException("nobody listens");
            }
            channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
            Link link = shake(channel, millis);
            done = true;
            return link;
        } finally {
            if (!done) {
                channel.close();
            }
        }
    }

    private Link shake(SocketChannel connected, int millis)
            throws IOException, InterruptedException {
        TlsHandler handler = TlsHandler.ofClient(tls);
        NioSocketChannel channel = new NioSocketChannel(connected);
        channel.config().setAllocator(UnpooledByteBufAllocator.DEFAULT);
        Link link = new Link(channel, limit, events);
        channel.pipeline().addLast(JobLoop.handlers(handler, link));
        local.loop().serve(channel);
        try {
            handler.complete().get(millis, TimeUnit.MILLISECONDS);
            link.touch(); // what came in the handshake was heard, too
            return link;
        } catch (TimeoutException e) {
            throw new SocketTimeoutException("no answer in time");
        } catch (ExecutionException e) {
            if (handler.hasOtherKey()) {
                throw new SSLHandshakeException("it does not know the secret");
            }
            if (e.getCause() instanceof EOFException end) {
                throw end;
            }
            throw new IOException(
                    "what listens there is no process of a job, or has another version of this"
                            + " library",
                    e);
        }
    }
}
