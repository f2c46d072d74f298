package io.djltp.environment;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.channels.ServerSocketChannel;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;

/**
 * The port at which process 0 of a job listens, for launchers that do not say one.
 *
 * <p>Process 0 binds a free port first, tells the others its number by the launcher's own means,
 * and joins with the bound channel, see {@link io.djltp.job.Job}.
 */
public final class MasterPort {

    /** How many connections may wait for the thread that accepts them. */
    private static final int BACKLOG = 1024;

    /** Below the ports that systems give out for connections, and away from those of services. */
    private static final int FIRST_DERIVED = 20_000;

    private static final int DERIVED = 10_000;
    private static final int MAX_CANDIDATES = 5;

    private MasterPort() {}

    /**
     * Returns the ports at which process 0 of a run may listen: that of the launcher, and if the
     * launcher names the run, some more in case that is taken. All processes find the same ones
     * without talking. That it is this run that listens at one of them shows when it proves that it
     * knows the secret.
     */
    static List<Integer> candidates(LaunchEnvironment environment) {
        if (environment.run().isEmpty()) {
            return List.of(environment.masterPort());
        }
        Set<Integer> ports = new LinkedHashSet<>();
        ports.add(environment.masterPort());
        // the numbers of this class are the same in every Java
        Random random = new Random(environment.run().hashCode());
        while (ports.size() < MAX_CANDIDATES) {
            ports.add(next(random));
        }
        return List.copyOf(ports);
    }

    /** Returns the first port for a run whose launcher says none. */
    static int derive(String run) {
        return next(new Random(run.hashCode()));
    }

    private static int next(Random random) {
        return FIRST_DERIVED + random.nextInt(DERIVED);
    }

    /**
     * Binds a free port.
     *
     * @param address the host name or address of this machine at which the others reach it
     * @return the bound channel, which the job closes
     */
    public static ServerSocketChannel bindEphemeral(String address) {
        try {
            return bind(InetAddress.getByName(address), 0);
        } catch (IOException e) {
            throw new IllegalArgumentException(
                    "Cannot listen at the address '%s' (%s): give an address of this machine"
                            .formatted(address, e.getMessage()),
                    e);
        }
    }

    /**
     * Returns the number of a bound port.
     *
     * @param channel the channel
     * @return the port
     */
    public static int getPort(ServerSocketChannel channel) {
        return channel.socket().getLocalPort();
    }

    /**
     * Binds a port.
     *
     * @param address an address of this machine, or {@code null} for all of them
     * @param port the port, or 0 for any that is free
     * @return the bound channel
     * @throws IOException if the port is taken, or the address is none of this machine
     */
    public static ServerSocketChannel bind(@Nullable InetAddress address, int port)
            throws IOException {
        ServerSocketChannel channel = ServerSocketChannel.open();
        try {
            return channel.bind(new InetSocketAddress(address, port), BACKLOG);
        } catch (IOException | RuntimeException e) {
            channel.close();
            throw e;
        }
    }
}
