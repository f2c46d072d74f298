package io.djltp.job;

import io.netty.bootstrap.ServerBootstrap;
import io.netty.channel.Channel;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoop;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.channel.socket.nio.NioSocketChannel;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * A port at which members come in.
 *
 * <p>Anyone may connect to it, so that what strangers can take is bounded: a connection has {@link
 * #PATIENCE} to be let in, and when more than {@link #MAX_PENDING} are at it, the oldest is
 * dropped. Members are done within a round trip or two, and come again if they are dropped.
 */
final class Door {

    /** How many connections may be waiting to be let in. */
    static final int MAX_PENDING = 512;

    /** How long a connection may take until it is let in. */
    static final Duration PATIENCE = Duration.ofSeconds(5);

    private static final Logger logger = LoggerFactory.getLogger(Door.class);
    private static final long SWEEP_MILLIS = 250;
    private static final long REPORT_NANOS = TimeUnit.SECONDS.toNanos(60);

    private final JobLoop jobLoop;
    private final EventLoop loop;
    private final Channel server;
    // since when, in the order of arrival
    private final Map<Channel, Long> pending = new LinkedHashMap<>();
    // counted on one thread, read on others
    private volatile long strangers;
    private volatile long wrongKeys;
    private long reported;
    private long lastReport = System.nanoTime() - REPORT_NANOS;

    /**
     * Opens a door.
     *
     * @param jobLoop where its connections live
     * @param bound the bound channel, which is closed with the loop
     * @param handlers what a connection is put through; the last of them calls {@link #letIn}
     */
    Door(JobLoop jobLoop, ServerSocketChannel bound, JobLoop.HandlersOf handlers)
            throws IOException {
        this.jobLoop = jobLoop;
        loop = jobLoop.get();
        bound.configureBlocking(false);
        ServerBootstrap bootstrap =
                new ServerBootstrap()
                        .group(loop)
                        .channelFactory(() -> new Accepting(bound))
                        .childOption(ChannelOption.TCP_NODELAY, true)
                        .childHandler(
                                new ChannelInitializer<Accepted>() {

                                    /** {@inheritDoc} */
                                    @Override
                                    protected void initChannel(Accepted channel) {
                                        arrive(channel);
                                        channel.pipeline().addLast(handlers.of(channel));
                                    }
                                });
        server = bootstrap.register().syncUninterruptibly().channel();
        jobLoop.keep(server);
        loop.execute(this::sweep);
    }

    /** Notes that a connection is of a member. On the thread of the connections. */
    void letIn(Channel channel) {
        pending.remove(channel);
    }

    /** Returns how many connections were not let in because they have another key. */
    long wrongKeys() {
        return wrongKeys;
    }

    /** Returns how many connections were not let in for other reasons, or were too slow. */
    long strangers() {
        return strangers;
    }

    /** Lets a connection in, and takes it out of the loop: the taker gets it in blocking mode. */
    void giveAway(Channel channel, Consumer<SocketChannel> taker) {
        SocketChannel accepted = ((Accepted) channel).accepted;
        letIn(channel);
        jobLoop.giveAway(channel);
        channel.deregister()
                .addListener(
                        done -> {
                            accepted.configureBlocking(true);
                            taker.accept(accepted);
                        });
    }

    private void arrive(Channel channel) {
        jobLoop.keep(channel);
        pending.put(channel, System.nanoTime());
        channel.closeFuture().addListener(closed -> drop(channel));
        if (pending.size() > MAX_PENDING) {
            pending.keySet().iterator().next().close();
        }
    }

    private void drop(Channel channel) {
        if (pending.remove(channel) == null) {
            return;
        }
        TlsHandler tls = channel.pipeline().get(TlsHandler.class);
        if (tls != null && tls.hasOtherKey()) {
            wrongKeys++;
        } else {
            strangers++;
        }
    }

    private void sweep() {
        long late = System.nanoTime() - PATIENCE.toNanos();
        List<Channel> slow =
                pending.entrySet().stream()
                        .filter(each -> each.getValue() - late < 0)
                        .map(Map.Entry::getKey)
                        .toList();
        slow.forEach(Channel::close);
        report();
        if (server.isOpen()) {
            loop.schedule(this::sweep, SWEEP_MILLIS, TimeUnit.MILLISECONDS);
        }
    }

    /**
     * Writes what has come since the last time, at most once a minute: a line is cheap to cause.
     */
    private void report() {
        long count = strangers + wrongKeys;
        if (count == reported || System.nanoTime() - lastReport < REPORT_NANOS) {
            return;
        }
        lastReport = System.nanoTime();
        reported = count;
        if (wrongKeys > 0) {
            logger.warn("{} connections to {} were refused: wrong secret", wrongKeys, server);
        }
        logger.debug("{} connections to {} were none of this job", strangers, server);
    }

    /** Accepts connections that can be taken out of the loop again. */
    private static final class Accepting extends NioServerSocketChannel {

        Accepting(ServerSocketChannel bound) {
            super(bound);
        }

        /** {@inheritDoc} */
        @Override
        protected int doReadMessages(List<Object> messages) throws Exception {
            SocketChannel accepted = javaChannel().accept();
            if (accepted == null) {
                return 0;
            }
            messages.add(new Accepted(this, accepted));
            return 1;
        }
    }

    /** A connection that was accepted. */
    private static final class Accepted extends NioSocketChannel {

        private final SocketChannel accepted;

        Accepted(Channel parent, SocketChannel accepted) {
            super(parent, accepted);
            this.accepted = accepted;
        }
    }
}
