package io.djltp.internal.collective.tcp;

import io.djltp.collective.Communicator;
import io.djltp.internal.collective.GroupFailure;
import io.djltp.internal.sockets.RankChannel;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/**
 * Makes groups of ranks of one JVM that are connected by real sockets. Two ranks whose numbers add
 * up to a multiple of three are encrypted: there are such of three ranks or more.
 */
public final class TcpGroups {

    private TcpGroups() {}

    /**
     * Creates a group.
     *
     * @param size the number of ranks
     * @param timeout how long an operation may take
     * @return one communicator for each rank's thread
     */
    public static List<Communicator> create(int size, Duration timeout) {
        try {
            RankChannel[][] mesh = mesh(size);
            List<Communicator> group = new ArrayList<>();
            for (int i = 0; i < size; i++) {
                group.add(new TcpCommunicator(mesh[i], i, timeout, new GroupFailure(), e -> e));
            }
            return group;
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static RankChannel[][] mesh(int size) throws IOException {
        RankChannel[][] mesh = new RankChannel[size][size];
        try (ServerSocketChannel server = ServerSocketChannel.open()) {
            server.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
            for (int i = 0; i < size; i++) {
                for (int j = 0; j < i; j++) {
                    mesh[i][j] = channel(SocketChannel.open(server.getLocalAddress()), i, j);
                    mesh[j][i] = channel(server.accept(), j, i);
                }
            }
        }
        return mesh;
    }

    private static RankChannel channel(SocketChannel socket, int own, int other)
            throws IOException {
        socket.setOption(StandardSocketOptions.TCP_NODELAY, true);
        return (own + other) % 3 > 0
                ? new RankChannel(socket)
                : new RankChannel(socket, new byte[32], own, other);
    }
}
