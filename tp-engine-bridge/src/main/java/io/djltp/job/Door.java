package io.djltp.job;

import io.djltp.internal.environment.Admission;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.UnpooledByteBufAllocator;
import io.netty.channel.Channel;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;

import org.bouncycastle.tls.TlsServerProtocol;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.channels.ServerSocketChannel;
import java.util.concurrent.TimeUnit;

/**
 * The port at which members come in by an {@link Admission}. Members are done within a round trip
 * or two, and come again if they are dropped.
 */
final class Door {

    private static final Logger logger = LoggerFactory.getLogger(Door.class);
    private static final long REPORT_NANOS = TimeUnit.SECONDS.toNanos(60);

    private final Admission<Channel> admission = new Admission<>(Channel::close);
    // counted on one thread, read on others
    private volatile long strangers;
    private volatile long wrongKeys;
    private long lastReport = System.nanoTime() - REPORT_NANOS;

    /**
     * Lets connections come. Call this when everything that an event needs is there: the first may
     * have come before.
     *
     * @param loop the thread of the connections
     * @param bound the bound channel, which is closed with the loop
     * @param tls the encryption of the connections
     * @param limit the most bytes of a message that comes
     * @param events what to do with what happens on a connection; calls {@link #letIn}
     */
    void open(JobLoop loop, ServerSocketChannel bound, JobTls tls, long limit, Link.Events events)
            throws IOException {
        bound.configureBlocking(false);
        ChannelInitializer<SocketChannel> arrival =
                new ChannelInitializer<>() {
                    /** {@inheritDoc} */
                    @Override
                    protected void initChannel(SocketChannel channel) {
                        JobTls.Handler handler = tls.new Handler(new TlsServerProtocol());
                        loop.keep(channel);
                        channel.closeFuture().addListener(closed -> end(channel, handler));
                        admission.arrive(channel);
                        new Link(channel, handler, limit, events);
                    }
                };
        ServerBootstrap bootstrap =
                new ServerBootstrap()
                        .group(loop.thread())
                        .channelFactory(() -> new NioServerSocketChannel(bound))
                        .option(ChannelOption.ALLOCATOR, UnpooledByteBufAllocator.DEFAULT)
                        .childOption(ChannelOption.ALLOCATOR, UnpooledByteBufAllocator.DEFAULT)
                        .childOption(ChannelOption.TCP_NODELAY, true)
                        .childHandler(arrival);
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

    private void end(Channel channel, JobTls.Handler tls) {
        if (!admission.leave(channel)) {
            return;
        }
        if (!tls.hasOtherKey()) {
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
