package io.djltp.job;

import java.net.StandardSocketOptions;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** A member that speaks the protocol, and does with it what a real one would not. */
final class FakeMember {

    private FakeMember() {}

    /** Connects to the master of a job that was given no secret. */
    static SocketChannel connect(int port, Hello hello) throws Exception {
        byte[] key = Proof.controlKey(LocalSecret.ofUser().get(), "");
        Dialer dialer = new Dialer(Jobs.LOOPBACK, List.of(port), key, channel -> hello.encode());
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(10);
        SocketChannel channel = dialer.dial(deadline, () -> false);
        channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        return channel;
    }

    /** Connects, and talks as a real one does. */
    static Link link(int port, Hello hello, Link.Events events) throws Exception {
        SocketChannel channel = connect(port, hello);
        return new Link(channel, 0, 1 << 20, Duration.ofSeconds(5), () -> "", events);
    }
}
