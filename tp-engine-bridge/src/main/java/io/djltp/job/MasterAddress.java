package io.djltp.job;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.environment.MasterPort;
import io.djltp.internal.Errors;
import io.djltp.internal.environment.JobSecret;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.net.BindException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.NetworkInterface;
import java.net.UnknownHostException;
import java.nio.channels.ServerSocketChannel;

/** Where the processes of a job meet, and the secret by which they know each other there. */
final class MasterAddress {

    private static final Logger logger = LoggerFactory.getLogger(MasterAddress.class);

    private static final String SECRET_REMEDY =
            "set TP_SECRET to the same long random text on all processes";
    private static final String REFUSED = "is TP_SECRET the same on all processes?";
    private static final String OTHER_USER =
            "without TP_SECRET all processes of a job on loopback must be of one user; otherwise "
                    + SECRET_REMEDY;
    private static final int MIN_SECRET = 16;
    private static final String SHORT_SECRET =
            "The secret has %s, and other machines reach the job: whoever records a connection can"
                    + " try out all as short, and join later jobs. Give %d or more to all"
                    + " processes, random, such as openssl rand -hex 32 prints";
    private static final String UNRESOLVED =
            "the name '%s' does not resolve on this machine: set MASTER_ADDR to an address of the"
                    + " machine of process 0%s, or add the name to /etc/hosts";

    private final LaunchEnvironment environment;
    private final @Nullable ServerSocketChannel bound;
    private final byte[] secret;
    private final boolean given;

    /**
     * Finds out where to meet.
     *
     * @param environment what the launcher said
     * @param secret the secret that was given, or {@code null}
     * @param bound in process 0, the channel at which it listens, or {@code null}
     * @throws IllegalArgumentException if the place is not known, or strangers could come there
     */
    MasterAddress(
            LaunchEnvironment environment,
            byte @Nullable [] secret,
            @Nullable ServerSocketChannel bound)
            throws InterruptedException {
        this.environment = environment;
        this.bound = environment.process() == 0 ? bound : null;
        if (this.bound == null) {
            host();
        }
        if (this.bound == null && environment.masterPort() == 0) {
            throw new IllegalArgumentException(
                    "The port of process 0 is not known: set MASTER_PORT to a free port of"
                            + " its host");
        }
        given = secret != null;
        this.secret = secret == null ? localSecret() : secret;
    }

    /**
     * Returns the host of process 0, where this process does not listen at a channel of its own.
     */
    String host() {
        if (environment.masterAddress() == null) {
            throw new IllegalArgumentException(
                    "The address of process 0 is not known: set MASTER_ADDR to its host");
        }
        return environment.masterAddress();
    }

    private byte[] localSecret() throws InterruptedException {
        try {
            InetAddress address =
                    bound == null ? InetAddress.getByName(host()) : bound.socket().getInetAddress();
            if (address.isLoopbackAddress()) {
                return JobSecret.ofUser();
            }
        } catch (UnknownHostException e) {
            throw new IllegalArgumentException(
                    ("Process 0 is to be at %s, and %s. A job that other machines can reach needs"
                                    + " a secret, too: %s")
                            .formatted(firstPlace(), unresolved(), SECRET_REMEDY),
                    e);
        }
        throw Errors.argument(
                "A job at %s can be reached from other machines and needs a secret: %s",
                firstPlace(), SECRET_REMEDY);
    }

    /** Returns the TLS of the control connections. */
    JobTls tls() {
        return new JobTls(secret, environment.run());
    }

    private String firstPlace() {
        return bound == null
                ? ErrorTexts.address(host(), environment.masterPort())
                : ErrorTexts.address((InetSocketAddress) bound.socket().getLocalSocketAddress());
    }

    /** Returns in words where a member looks for process 0: at all ports at which it may be. */
    String place() {
        StringBuilder text = new StringBuilder(firstPlace());
        environment.masterPorts().stream().skip(1).forEach(it -> text.append(", ").append(it));
        return text.toString();
    }

    /** Says what to do about a process 0 that does not know the secret. */
    String whyRefused() {
        return given ? REFUSED : OTHER_USER;
    }

    /** Says what to do about the name of process 0, which is not known. */
    String unresolved() {
        String host = host();
        String slurm = " (the NodeAddr of scontrol show node " + host + ")";
        return UNRESOLVED.formatted(host, isSlurm() ? slurm : "");
    }

    boolean isSlurm() {
        return environment.launcher().equals("Slurm");
    }

    /**
     * Listens, in process 0: at the first of the ports that is free.
     *
     * @throws IllegalArgumentException if other machines reach the place and the secret is short
     */
    ServerSocketChannel listen() throws IOException {
        InetAddress address = bound == null ? localAddress() : bound.socket().getInetAddress();
        boolean own = address != null && address.isLoopbackAddress();
        if (secret.length < MIN_SECRET && !own) {
            String length = ErrorTexts.count(secret.length, "byte", "bytes");
            throw new IllegalArgumentException(SHORT_SECRET.formatted(length, MIN_SECRET));
        }
        return bound == null ? listenAtFree(address) : bound;
    }

    private ServerSocketChannel listenAtFree(@Nullable InetAddress address) {
        IOException reason = new BindException("there is no port");
        for (int candidate : environment.masterPorts()) {
            try {
                return MasterPort.bind(address, candidate);
            } catch (IOException e) {
                reason = e;
            }
        }
        String text =
                "Process 0 cannot listen at %s (%s): end what uses port %d, or set MASTER_PORT to a"
                        + " free port on all processes";
        throw new JobFailedException(
                text.formatted(place(), ErrorTexts.reason(reason), environment.masterPort()),
                -1,
                -1,
                reason);
    }

    /** Returns the master's address if it is one of this machine, or else {@code null} for all. */
    private @Nullable InetAddress localAddress() throws IOException {
        try {
            InetAddress address = InetAddress.getByName(host());
            boolean local =
                    address.isLoopbackAddress()
                            || NetworkInterface.getByInetAddress(address) != null;
            return local ? address : null;
        } catch (UnknownHostException e) {
            // the name of a service, known only to those who look from elsewhere
            logger.warn(
                    "Process 0 listens at all addresses: the name '{}' does not resolve on its"
                            + " machine",
                    host());
            return null;
        }
    }
}
