package io.djltp.job;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.NetworkInterface;
import java.net.UnknownHostException;
import java.nio.channels.ServerSocketChannel;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** Where the processes of a job meet, and the secret by which they know each other there. */
final class Rendezvous {

    private static final Logger logger = LoggerFactory.getLogger(Rendezvous.class);

    private static final String SECRET_REMEDY =
            "set TP_SECRET to the same long random text on all processes";
    private static final String REFUSED = "is TP_SECRET the same on all processes?";
    private static final String OTHER_USER =
            "without TP_SECRET all processes of a job on loopback must be of one user; otherwise "
                    + SECRET_REMEDY;
    private static final String UNREACHABLE =
            "see whether process 0 was started there, and MASTER_ADDR and MASTER_PORT are the same"
                    + " on all processes";
    private static final String UNRESOLVED =
            "the name '%s' does not resolve on this machine: set MASTER_ADDR to an address of the"
                    + " machine of process 0%s, or add the name to /etc/hosts";

    /**
     * The names of Slurm's nodes are there when its tasks start, or will never be. Java keeps it in
     * mind for 10 seconds that a name was not found.
     */
    private static final long SLURM_NAME_NANOS = TimeUnit.SECONDS.toNanos(11);

    private final LaunchEnvironment environment;
    private final ServerSocketChannel bound;
    private final List<Integer> ports;
    private final byte[] secret;
    private final boolean given;
    private int port;

    /**
     * Finds out where to meet.
     *
     * @param environment what the launcher said
     * @param secret the secret that was given, or {@code null}
     * @param bound in process 0, the channel at which it listens, or {@code null}
     * @throws IllegalArgumentException if the place is not known, or strangers could come there
     */
    Rendezvous(LaunchEnvironment environment, byte[] secret, ServerSocketChannel bound)
            throws InterruptedException {
        this.environment = environment;
        this.bound = environment.process() == 0 ? bound : null;
        given = secret != null;
        checkKnown();
        ports = MasterPort.candidates(environment);
        port = environment.masterPort();
        this.secret = given ? secret : localSecret();
    }

    private void checkKnown() {
        if (bound != null) {
            return;
        }
        if (environment.masterAddress() == null) {
            throw new IllegalArgumentException(
                    "The address of process 0 is not known: set MASTER_ADDR to its host");
        }
        if (environment.masterPort() == 0) {
            throw new IllegalArgumentException(
                    "The port of process 0 is not known: set MASTER_PORT to a free port of"
                            + " its host");
        }
    }

    private byte[] localSecret() throws InterruptedException {
        boolean loopback;
        try {
            InetAddress address = address();
            loopback = address != null && address.isLoopbackAddress();
        } catch (UnknownHostException e) {
            throw new IllegalArgumentException(
                    ("Process 0 is to be at %s, and %s. A job that other machines can reach needs"
                                    + " a secret, too: %s")
                            .formatted(place(), unresolved(), SECRET_REMEDY),
                    e);
        }
        if (!loopback) {
            throw new IllegalArgumentException(
                    "A job at %s can be reached from other machines and needs a secret: %s"
                            .formatted(place(), SECRET_REMEDY));
        }
        return LocalSecret.ofUser().get();
    }

    private InetAddress address() throws UnknownHostException {
        return bound == null
                ? InetAddress.getByName(environment.masterAddress())
                : bound.socket().getInetAddress();
    }

    /** Returns the TLS of the control connections. */
    JobTls tls() {
        return new JobTls(secret, environment.run());
    }

    /** Returns the place in words: all ports at which process 0 may be, until one is found. */
    String place() {
        if (bound != null) {
            return Texts.address((InetSocketAddress) bound.socket().getLocalSocketAddress());
        }
        return Texts.address(environment.masterAddress(), port);
    }

    /** Notes at which of the ports process 0 was found. */
    void found(int at) {
        port = at;
    }

    /** Listens, in process 0: at the first of the ports that is free. */
    ServerSocketChannel listen() {
        if (bound != null) {
            return bound;
        }
        IOException reason = null;
        for (int candidate : ports) {
            try {
                ServerSocketChannel channel = MasterPort.bind(localAddress(), candidate);
                port = candidate;
                return channel;
            } catch (IOException e) {
                reason = e;
            }
        }
        String text =
                "Process 0 cannot listen at %s (%s): end what uses port %d, or set MASTER_PORT"
                        + " to a free port on all processes";
        throw failure(text.formatted(places(), Dialer.reason(reason), port), reason);
    }

    /** Returns the master's address if it is one of this machine, or else {@code null} for all. */
    private InetAddress localAddress() throws IOException {
        try {
            InetAddress address = InetAddress.getByName(environment.masterAddress());
            boolean local =
                    address.isLoopbackAddress()
                            || NetworkInterface.getByInetAddress(address) != null;
            return local ? address : null;
        } catch (UnknownHostException e) {
            // the name of a service, known only to those who look from elsewhere
            logger.warn(
                    "Process 0 listens at all addresses: the name '{}' does not resolve on its"
                            + " machine",
                    environment.masterAddress());
            return null;
        }
    }

    /**
     * Connects to process 0.
     *
     * @param deadline until when to try, on the clock of {@link System#nanoTime}
     * @param timeout how long that is, for the words
     * @param greeting what to say first
     * @return what the connection has become
     */
    <T> T dial(long deadline, Duration timeout, Dialer.Greeting<T> greeting)
            throws InterruptedException {
        Dialer<T> dialer = new Dialer<>(environment.masterAddress(), ports, greeting);
        long nameDeadline = System.nanoTime() + SLURM_NAME_NANOS;
        try {
            return dialer.dial(
                    deadline,
                    () ->
                            environment.isSlurm()
                                    && dialer.isUnresolved()
                                    && System.nanoTime() - nameDeadline >= 0);
        } catch (IOException e) {
            String text = "Process %d %s process 0 at %s %s %s (%s): %s";
            boolean refused = dialer.isRefused();
            boolean early = deadline - System.nanoTime() > TimeUnit.SECONDS.toNanos(1);
            Duration time = early ? Duration.ofNanos(SLURM_NAME_NANOS) : timeout;
            throw failure(
                    text.formatted(
                            environment.process(),
                            refused ? "was refused by" : "cannot reach",
                            places(),
                            refused ? "for" : "within",
                            Texts.time(time),
                            Dialer.reason(e),
                            remedy(dialer)),
                    e);
        }
    }

    private String remedy(Dialer<?> dialer) {
        if (dialer.isRefused()) {
            return given ? REFUSED : OTHER_USER;
        }
        return dialer.isUnresolved() ? unresolved() : UNREACHABLE;
    }

    private String unresolved() {
        String host = environment.masterAddress();
        String slurm = " (the NodeAddr of scontrol show node " + host + ")";
        return UNRESOLVED.formatted(host, environment.isSlurm() ? slurm : "");
    }

    /** Returns all places at which process 0 may be, in words. */
    private String places() {
        StringBuilder text = new StringBuilder(place());
        ports.stream().skip(1).forEach(other -> text.append(", ").append(other));
        return text.toString();
    }

    private static JobFailedException failure(String text, Exception cause) {
        return new JobFailedException(text, -1, -1, cause);
    }
}
