package io.djltp.job;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelHandler;
import io.netty.channel.ChannelHandlerContext;
import io.netty.handler.codec.ByteToMessageDecoder;

import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;

/**
 * The connections between ranks: each process listens at a port of its own, and of every two ranks
 * the higher one connects to the lower one's, with a {@linkplain RankTokens token}.
 */
final class RankConnections {

    private final JobState state;
    private final JobLoop loop;
    private ServerSocketChannel server;
    private Door door;
    private Duration timeout;
    private List<Hello> members;
    private volatile RankTokens tokens = new RankTokens();

    RankConnections(JobState state, JobLoop loop) {
        this.state = state;
        this.loop = loop;
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
     * @param limit how long to wait for them
     * @param all where they listen
     */
    synchronized void start(Duration limit, List<Hello> all) throws IOException {
        timeout = limit;
        members = all;
        if (server != null) {
            door = new Door(loop, server, channel -> new ChannelHandler[] {new Admission()});
        }
    }

    /** Reads the token of a connection, and takes the connection out of the loop. */
    private final class Admission extends ByteToMessageDecoder {

        /** {@inheritDoc} */
        @Override
        protected void decode(ChannelHandlerContext context, ByteBuf in, List<Object> out) {
            if (in.readableBytes() < RankTokens.SHOWN) {
                return;
            }
            // a rank waits for the answer before it says anything else
            boolean more = in.readableBytes() > RankTokens.SHOWN;
            byte[] shown = ByteBufUtil.getBytes(in.readSlice(RankTokens.SHOWN));
            RankTokens open = tokens;
            RankTokens.Pair pair = more ? null : open.admit(shown);
            if (pair == null) {
                context.close();
                return;
            }
            context.channel().config().setAutoRead(false);
            context.writeAndFlush(Unpooled.wrappedBuffer(open.answer(pair)))
                    .addListener(
                            sent ->
                                    door.giveAway(
                                            context.channel(), taken -> arrive(open, pair, taken)));
        }

        private void arrive(RankTokens open, RankTokens.Pair pair, SocketChannel channel) {
            open.arrive(pair, channel);
            state.changed();
        }

        /** {@inheritDoc} */
        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            // most strangers end so
            context.close();
        }
    }

    /** Connects all ranks, see {@link Job#connectMesh}. */
    SocketChannel[][] connect(Job job, String name) throws InterruptedException {
        SocketChannel[][] channels = new SocketChannel[job.getLocalRanks()][job.getRanks()];
        if (job.getRanks() == 1) {
            return channels;
        }
        RankTokens own = new RankTokens();
        boolean done = false;
        try {
            String error = job.getProcesses() == 1 ? openAlone() : null;
            own.expect(job);
            tokens = own;
            byte[][] tickets = job.exchange("mesh: " + name, own.ticket());
            // half the time of an exchange: those who succeed wait for the others in the next one
            long deadline = System.nanoTime() + timeout.toNanos() / 2;
            error = error == null ? dialAll(job, tickets, channels, deadline) : error;
            error = error == null ? awaitAll(own, deadline) : error;
            job.check("connecting the mesh '" + name + "'", error);
            own.take(job, channels);
            done = true;
            return channels;
        } finally {
            own.close();
            if (!done) {
                Arrays.stream(channels).flatMap(Arrays::stream).forEach(Dialer::closeQuietly);
            }
        }
    }

    void close() {
        tokens.close();
        Dialer.closeQuietly(server);
    }

    private String openAlone() {
        try {
            if (door == null) {
                listen(InetAddress.getLoopbackAddress());
                start(timeout, members);
            }
            return null;
        } catch (IOException e) {
            return "cannot listen on loopback: " + Dialer.reason(e);
        }
    }

    private String dialAll(Job job, byte[][] tickets, SocketChannel[][] channels, long deadline)
            throws InterruptedException {
        for (int i = 0; i < channels.length; i++) {
            int from = job.getFirstRank() + i;
            for (int to = 0; to < from; to++) {
                int process = job.processOf(to);
                InetSocketAddress address = address(job, process);
                byte[] token = new RankTokens.Pair(from, to).token(tickets[process]);
                Dialer<SocketChannel> dialer =
                        new Dialer<>(
                                address.getHostString(),
                                List.of(address.getPort()),
                                (channel, until) -> show(channel, token, until));
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

    private static SocketChannel show(SocketChannel channel, byte[] token, long deadline)
            throws IOException {
        ByteBuffer shown = ByteBuffer.wrap(token, 0, RankTokens.SHOWN);
        while (shown.hasRemaining()) {
            channel.write(shown);
        }
        channel.socket().setSoTimeout(Dialer.millisUntil(deadline));
        byte[] answer = new byte[RankTokens.ANSWER];
        new DataInputStream(channel.socket().getInputStream()).readFully(answer);
        channel.socket().setSoTimeout(0);
        byte[] expected = Arrays.copyOfRange(token, RankTokens.SHOWN, token.length);
        if (!MessageDigest.isEqual(answer, expected)) {
            throw new EOFException("what listens there is not the process of that rank");
        }
        return channel;
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

    private String awaitAll(RankTokens own, long deadline) throws InterruptedException {
        if (state.await(() -> own.isComplete() ? Boolean.TRUE : null, deadline) != null) {
            return null;
        }
        return own.describeMissing() + " within " + Texts.time(timeout.dividedBy(2));
    }

    private InetSocketAddress address() {
        return (InetSocketAddress) server.socket().getLocalSocketAddress();
    }
}
