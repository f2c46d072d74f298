package io.djltp.internal.collective.tcp;

import io.djltp.collective.Communicator;
import io.djltp.internal.collective.GroupFailure;

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

/** Makes groups of ranks of one JVM that are connected by real sockets. */
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
            SocketChannel[][] mesh = mesh(size);
            List<Communicator> group = new ArrayList<>();
            for (int i = 0; i < size; i++) {
                group.add(new TcpCommunicator(mesh[i], i, timeout, new GroupFailure(), e -> e));
            }
            return group;
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static SocketChannel[][] mesh(int size) throws IOException {
        SocketChannel[][] mesh = new SocketChannel[size][size];
        try (ServerSocketChannel server = ServerSocketChannel.open()) {
            server.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
            for (int i = 0; i < size; i++) {
                for (int j = 0; j < i; j++) {
                    mesh[i][j] = SocketChannel.open(server.getLocalAddress());
                    mesh[j][i] = server.accept();
                    mesh[i][j].setOption(StandardSocketOptions.TCP_NODELAY, true);
                    mesh[j][i].setOption(StandardSocketOptions.TCP_NODELAY, true);
                }
            }
        }
        return mesh;
    }
}
