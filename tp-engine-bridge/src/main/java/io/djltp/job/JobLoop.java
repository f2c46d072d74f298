package io.djltp.job;

import io.netty.channel.Channel;
import io.netty.channel.ChannelHandler;
import io.netty.channel.EventLoop;
import io.netty.channel.IoEventLoopGroup;
import io.netty.channel.SingleThreadIoEventLoop;
import io.netty.channel.group.ChannelGroup;
import io.netty.channel.group.DefaultChannelGroup;
import io.netty.channel.nio.NioIoHandler;
import io.netty.handler.stream.ChunkedWriteHandler;
import io.netty.util.concurrent.DefaultThreadFactory;

import java.util.concurrent.TimeUnit;

/** The one thread of a process on which the connections of its job live. */
final class JobLoop {

    private static final long END_MILLIS = 1000;

    private final EventLoop thread =
            new SingleThreadIoEventLoop(
                    (IoEventLoopGroup) null,
                    new DefaultThreadFactory(Threads.PREFIX + "connections", true),
                    NioIoHandler.newFactory());
    private final ChannelGroup channels = new DefaultChannelGroup(thread);

    EventLoop thread() {
        return thread;
    }

    /** Serves a connection. */
    void serve(Channel channel) {
        thread.register(channel);
        keep(channel);
    }

    /** Notes what is closed in the end. */
    void keep(Channel channel) {
        channels.add(channel);
    }

    /** Returns what a connection is put through, from the wire on. */
    static ChannelHandler[] handlers(TlsHandler tls, Link link) {
        // parts of large messages go to TLS one by one, as fast as the peer takes them
        return new ChannelHandler[] {tls, new ChunkedWriteHandler(), link};
    }

    /** Closes all ports and connections: the ports are free then. */
    void close() {
        channels.close().awaitUninterruptibly(END_MILLIS);
        thread.shutdownGracefully(0, END_MILLIS, TimeUnit.MILLISECONDS)
                .awaitUninterruptibly(END_MILLIS);
    }
}
