package io.djltp.job;

import io.netty.channel.ChannelHandler;
import io.netty.channel.EventLoop;
import io.netty.channel.IoEventLoopGroup;
import io.netty.channel.SingleThreadIoEventLoop;
import io.netty.channel.nio.NioIoHandler;
import io.netty.channel.socket.SocketChannel;
import io.netty.util.concurrent.DefaultThreadFactory;

import java.util.concurrent.TimeUnit;

/** The one thread of a process on which the connections of its job live, made when needed. */
final class JobLoop {

    private EventLoop loop;

    synchronized EventLoop get() {
        if (loop == null) {
            IoEventLoopGroup none = null;
            loop =
                    new SingleThreadIoEventLoop(
                            none,
                            new DefaultThreadFactory(Threads.PREFIX + "connections", true),
                            NioIoHandler.newFactory());
        }
        return loop;
    }

    /** What a connection is put through, from the wire on. */
    interface HandlersOf {
        ChannelHandler[] of(SocketChannel channel);
    }

    synchronized void close() {
        if (loop != null) {
            // what it has is closed with it, and ports are free
            loop.shutdownGracefully(0, 1, TimeUnit.SECONDS).awaitUninterruptibly(1000);
        }
    }
}
