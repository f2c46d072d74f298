package io.djltp.job;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.channels.ServerSocketChannel;

/**
 * The port at which process 0 of a job listens, for launchers that do not say one.
 *
 * <p>Process 0 binds a free port first, tells the others its number by the launcher's own means,
 * and joins with {@link Job#join(LaunchEnvironment, JobOptions, ServerSocketChannel)}.
 */
public final class MasterPort {

    /** How many connections may wait for the thread that accepts them. */
    static final int BACKLOG = 1024;

    private MasterPort() {}

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
                            .formatted(address, Dialer.reason(e)),
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

    static ServerSocketChannel bind(InetAddress address, int port) throws IOException {
        ServerSocketChannel channel = ServerSocketChannel.open();
        try {
            return channel.bind(new InetSocketAddress(address, port), BACKLOG);
        } catch (IOException | RuntimeException e) {
            channel.close();
            throw e;
        }
    }
}
