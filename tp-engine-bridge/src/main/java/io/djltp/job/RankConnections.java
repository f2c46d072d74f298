package io.djltp.job;

import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * The connections between ranks: each process listens at a port of its own, and of every two ranks
 * the higher one connects to the lower one's.
 */
final class RankConnections implements MemberAcceptor.Handler {

    private final JobState state;
    private final Map<RankPair, SocketChannel> arrived = new HashMap<>();
    private ServerSocketChannel server;
    private MemberAcceptor acceptor;
    private byte[] key;
    private Duration timeout;
    private List<Hello> members;
    private boolean closed;

    /** The two ranks at the ends of a connection. */
    private record RankPair(String mesh, int from, int to) {

        byte[] encode() {
            return Payload.of(
                    out -> {
                        Payload.writeText(out, mesh);
                        out.writeInt(from);
                        out.writeInt(to);
                    });
        }

        static RankPair decode(byte[] payload) throws IOException {
            DataInputStream in = Payload.reader(payload);
            return new RankPair(Payload.readText(in), in.readInt(), in.readInt());
        }
    }

    RankConnections(JobState state) {
        this.state = state;
    }

    /**
     * Binds a port at an address of this machine, unless that is done.
     *
     * @param address the address, or {@code null} for all
     * @return where this process listens
     */
    synchronized InetSocketAddress listen(InetAddress address) throws IOException {
        if (server != null && !address().getAddress().equals(address)) {
            server.close();
            server = null;
        }
        if (server == null) {
            server = MasterPort.bind(address, 0);
        }
        return address();
    }

    /**
     * Starts to let members in.
     *
     * @param meshKey what members know
     * @param limit how long to wait for them
     * @param all where they listen
     */
    synchronized void start(byte[] meshKey, Duration limit, List<Hello> all) throws IOException {
        key = meshKey;
        timeout = limit;
        members = all;
        if (server != null) {
            acceptor = new MemberAcceptor(server, key, this);
            acceptor.start("accept-mesh");
        }
    }

    /** Connects all ranks, see {@link Job#connectMesh}. */
    SocketChannel[][] connect(Job job, String name) throws InterruptedException {
        SocketChannel[][] channels = new SocketChannel[job.getLocalRanks()][job.getRanks()];
        if (job.getRanks() == 1) {
            return channels;
        }
        boolean done = false;
        try {
            String error = job.getProcesses() == 1 ? openAlone() : null;
            job.exchange("mesh: " + name, new byte[0]);
            // half the time of an exchange: those who succeed wait for the others in the next one
            long deadline = System.nanoTime() + timeout.toNanos() / 2;
            error = error == null ? dialAll(job, name, channels, deadline) : error;
            error = error == null ? awaitAll(job, name, deadline) : error;
            job.check("connecting the mesh '" + name + "'", error);
            takeAll(job, name, channels);
            done = true;
            return channels;
        } finally {
            if (!done) {
                closeAll(channels);
            }
        }
    }

    /** {@inheritDoc} */
    @Override
    public void accept(SocketChannel channel, byte[] payload) throws IOException {
        RankPair pair = RankPair.decode(payload);
        synchronized (this) {
            if (closed) {
                channel.close();
                return;
            }
            // one that comes again has lost the first
            Dialer.closeQuietly(arrived.put(pair, channel));
        }
        state.changed();
    }

    void close() {
        MemberAcceptor accepting;
        ServerSocketChannel listening;
        synchronized (this) {
            closed = true;
            accepting = acceptor;
            listening = server;
            arrived.values().forEach(Dialer::closeQuietly);
            arrived.clear();
        }
        if (accepting != null) {
            accepting.close();
        }
        Dialer.closeQuietly(listening);
    }

    private String openAlone() {
        try {
            if (acceptor == null) {
                listen(InetAddress.getLoopbackAddress());
                start(key, timeout, members);
            }
            return null;
        } catch (IOException e) {
            return "cannot listen on loopback: " + Dialer.reason(e);
        }
    }

    private String dialAll(Job job, String name, SocketChannel[][] channels, long deadline)
            throws InterruptedException {
        for (int i = 0; i < channels.length; i++) {
            int from = job.getFirstRank() + i;
            for (int to = 0; to < from; to++) {
                InetSocketAddress address = address(job, job.processOf(to));
                RankPair pair = new RankPair(name, from, to);
                Dialer dialer =
                        new Dialer(
                                address.getHostString(),
                                List.of(address.getPort()),
                                key,
                                channel -> pair.encode());
                try {
                    channels[i][to] = dialer.dial(deadline, state::isOver);
                } catch (IOException e) {
                    return ("rank %d cannot reach rank %d at %s: %s; let the machines connect to"
                                    + " each other at any port")
                            .formatted(from, to, Texts.address(address), Dialer.reason(e));
                }
            }
        }
        return null;
    }

    private InetSocketAddress address(Job job, int process) {
        if (process != job.getProcess()) {
            Hello member = members.get(process);
            return InetSocketAddress.createUnresolved(member.meshHost(), member.meshPort());
        }
        InetAddress own = address().getAddress();
        InetAddress host = own.isAnyLocalAddress() ? InetAddress.getLoopbackAddress() : own;
        return InetSocketAddress.createUnresolved(host.getHostAddress(), address().getPort());
    }

    private String awaitAll(Job job, String name, long deadline) throws InterruptedException {
        List<RankPair> pairs = pairs(job, name);
        Boolean all = state.await(() -> missing(pairs).isEmpty() ? Boolean.TRUE : null, deadline);
        if (all != null) {
            return null;
        }
        RankPair first = missing(pairs).get(0);
        return "rank %d has not connected to rank %d within %s"
                .formatted(first.from, first.to, Texts.time(timeout.dividedBy(2)));
    }

    private List<RankPair> pairs(Job job, String name) {
        List<RankPair> pairs = new ArrayList<>();
        for (int i = 0; i < job.getLocalRanks(); i++) {
            int to = job.getFirstRank() + i;
            for (int from = to + 1; from < job.getRanks(); from++) {
                pairs.add(new RankPair(name, from, to));
            }
        }
        return pairs;
    }

    private synchronized List<RankPair> missing(List<RankPair> pairs) {
        return pairs.stream().filter(pair -> !arrived.containsKey(pair)).toList();
    }

    private synchronized void takeAll(Job job, String name, SocketChannel[][] channels) {
        for (RankPair pair : pairs(job, name)) {
            channels[pair.to - job.getFirstRank()][pair.from] = arrived.remove(pair);
        }
    }

    private InetSocketAddress address() {
        return (InetSocketAddress) server.socket().getLocalSocketAddress();
    }

    private static void closeAll(SocketChannel[][] channels) {
        for (SocketChannel[] row : channels) {
            for (SocketChannel channel : row) {
                Dialer.closeQuietly(channel);
            }
        }
    }
}
