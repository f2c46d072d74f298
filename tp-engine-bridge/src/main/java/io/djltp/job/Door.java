package io.djltp.job;

import io.djltp.environment.Admission;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.UnpooledByteBufAllocator;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandler;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.channels.ServerSocketChannel;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;

/**
 * The port at which members come in by an {@link Admission}. Members are done within a round trip
 * or two, and come again if they are dropped.
 */
final class Door {

    private static final Logger logger = LoggerFactory.getLogger(Door.class);
    private static final long REPORT_NANOS = TimeUnit.SECONDS.toNanos(60);

    private final JobLoop loop;
    private final Admission<Channel> admission = new Admission<>(Channel::close);
    // counted on one thread, read on others
    private volatile long strangers;
    private volatile long wrongKeys;
    private long lastReport = System.nanoTime() - REPORT_NANOS;

    Door(JobLoop loop) {
        this.loop = loop;
    }

    /**
     * Opens the door.
     *
     * @param bound the bound channel, which is closed with the loop
     * @param handlers what a connection is put through; the last of them calls {@link #letIn}
     */
    void open(ServerSocketChannel bound, Function<SocketChannel, ChannelHandler[]> handlers)
            throws IOException {
        bound.configureBlocking(false);
        ServerBootstrap bootstrap =
                new ServerBootstrap()
                        .group(loop.thread())
                        .channelFactory(() -> new NioServerSocketChannel(bound))
                        .option(ChannelOption.ALLOCATOR, UnpooledByteBufAllocator.DEFAULT)
                        .childOption(ChannelOption.ALLOCATOR, UnpooledByteBufAllocator.DEFAULT)
                        .childOption(ChannelOption.TCP_NODELAY, true)
                        .childHandler(
                                new ChannelInitializer<SocketChannel>() {

                                    /** {@inheritDoc} */
                                    @Override
                                    protected void initChannel(SocketChannel channel) {
                                        arrive(channel);
                                        channel.pipeline().addLast(handlers.apply(channel));
                                    }
                                });
        loop.keep(bootstrap.register().syncUninterruptibly().channel());
        long sweep = Admission.SWEEP.toMillis();
        loop.thread().scheduleAtFixedRate(admission::dropLate, sweep, sweep, TimeUnit.MILLISECONDS);
    }

    /** Notes that a connection is of a member. On the thread of the connections. */
    void letIn(Channel channel) {
        admission.leave(channel);
    }

    /** Returns how many connections were not let in because they have another key. */
    long wrongKeys() {
        return wrongKeys;
    }

    /** Returns how many connections were not let in for other reasons, or were too slow. */
    long strangers() {
        return strangers;
    }

    private void arrive(Channel channel) {
        loop.keep(channel);
        channel.closeFuture().addListener(closed -> end(channel));
        admission.arrive(channel);
    }

    private void end(Channel channel) {
        if (!admission.leave(channel)) {
            return;
        }
        TlsHandler tls = channel.pipeline().get(TlsHandler.class);
        if (tls == null || !tls.hasOtherKey()) {
            strangers++;
            return;
        }
        wrongKeys++;
        // at most once a minute: a line is cheap to cause
        if (System.nanoTime() - lastReport > REPORT_NANOS) {
            lastReport = System.nanoTime();
            String refused = ErrorTexts.count(wrongKeys, "connection was", "connections were");
            logger.warn("{} refused: wrong secret", refused);
        }
    }
}
