package io.djltp.job;

import io.netty.channel.Channel;
import io.netty.channel.EventLoop;
import io.netty.channel.IoEventLoopGroup;
import io.netty.channel.SingleThreadIoEventLoop;
import io.netty.channel.group.ChannelGroup;
import io.netty.channel.group.DefaultChannelGroup;
import io.netty.channel.nio.NioIoHandler;
import io.netty.util.concurrent.DefaultThreadFactory;
import io.netty.util.concurrent.Future;

import java.time.Duration;
import java.util.concurrent.TimeUnit;

/** The one thread of a process on which the connections of its job live. */
final class JobLoop {

    private static final long END_MILLIS = 1000;

    private final EventLoop thread =
            new SingleThreadIoEventLoop(
                    (IoEventLoopGroup) null,
                    new DefaultThreadFactory(JobState.THREAD_PREFIX + "connections", true),
                    NioIoHandler.newFactory());
    private final ChannelGroup channels = new DefaultChannelGroup(thread);

    EventLoop thread() {
        return thread;
    }

    /** Does something on the thread. */
    void execute(Runnable task) {
        thread.execute(task);
    }

    /** Does something on the thread after some time. */
    Future<?> schedule(Duration time, Runnable task) {
        return thread.schedule(task, time.toNanos(), TimeUnit.NANOSECONDS);
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

    /** Closes all ports and connections: the ports are free then. */
    void close() {
        channels.close().awaitUninterruptibly(END_MILLIS);
        thread.shutdownGracefully(0, END_MILLIS, TimeUnit.MILLISECONDS)
                .awaitUninterruptibly(END_MILLIS);
    }
}
