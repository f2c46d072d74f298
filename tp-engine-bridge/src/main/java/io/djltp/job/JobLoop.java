package io.djltp.job;

import io.netty.channel.Channel;
import io.netty.channel.ChannelHandler;
import io.netty.channel.EventLoop;
import io.netty.channel.IoEventLoopGroup;
import io.netty.channel.SingleThreadIoEventLoop;
import io.netty.channel.group.ChannelGroup;
import io.netty.channel.group.DefaultChannelGroup;
import io.netty.channel.nio.NioIoHandler;
import io.netty.channel.socket.SocketChannel;
import io.netty.util.concurrent.DefaultThreadFactory;

import java.util.concurrent.TimeUnit;

/** The one thread of a process on which the connections of its job live, made when needed. */
final class JobLoop {

    private EventLoop loop;
    private ChannelGroup channels;

    synchronized EventLoop get() {
        if (loop == null) {
            IoEventLoopGroup none = null;
            loop =
                    new SingleThreadIoEventLoop(
                            none,
                            new DefaultThreadFactory(Threads.PREFIX + "connections", true),
                            NioIoHandler.newFactory());
            channels = new DefaultChannelGroup(loop);
        }
        return loop;
    }

    /** What a connection is put through, from the wire on. */
    interface HandlersOf {
        ChannelHandler[] of(SocketChannel channel);
    }

    /** Serves a connection. */
    void serve(Channel channel) {
        get().register(channel);
        keep(channel);
    }

    /** Notes what is closed in the end. */
    void keep(Channel channel) {
        channels.add(channel);
    }

    /** Notes that a connection belongs to another now. */
    void giveAway(Channel channel) {
        channels.remove(channel);
    }

    /** Closes all ports and connections: the ports are free then. */
    synchronized void close() {
        if (loop != null) {
            channels.close().awaitUninterruptibly(1000);
            loop.shutdownGracefully(0, 1, TimeUnit.SECONDS).awaitUninterruptibly(1000);
        }
    }
}
