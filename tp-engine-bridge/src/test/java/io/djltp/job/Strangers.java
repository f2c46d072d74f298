package io.djltp.job;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;

/** Connections to the port of a job by those who are no members, in waves. */
final class Strangers {

    /** How many of a wave are made at the same time. */
    private static final int THREADS = 8;

    /** How many connections that say too little are kept open: more than may be pending. */
    private static final int KEPT = 700;

    private final int port;
    private final byte[] hello;
    private final Deque<SocketChannel> kept = new ArrayDeque<>();
    private final AtomicInteger made = new AtomicInteger();

    Strangers(int port) throws IOException {
        hello = TlsBytes.strange();
        this.port = port;
    }

    /** Returns how many connections there have been. */
    int made() {
        return made.get();
    }

    /** Makes so many connections, all kinds in turn. */
    void wave(int count) throws Exception {
        List<Callable<Void>> tasks = new ArrayList<>();
        for (int i = 0; i < THREADS; i++) {
            int seed = i;
            tasks.add(
                    () -> {
                        Random random = new Random(made.get() * 31L + seed);
                        for (int k = seed; k < count; k += THREADS) {
                            connect(k % 10, random);
                        }
                        return null;
                    });
        }
        Jobs.results(tasks);
    }

    void closeAll() throws IOException {
        synchronized (kept) {
            for (SocketChannel channel : kept) {
                channel.close();
            }
            kept.clear();
        }
    }

    private void connect(int kind, Random random) throws Exception {
        SocketChannel channel = SocketChannel.open();
        try {
            channel.connect(new InetSocketAddress(Jobs.LOOPBACK, port));
            made.incrementAndGet();
            byte[] bytes = bytes(kind, random);
            if (kind % 2 == 0) {
                // leaves nothing behind but a reset
                channel.setOption(StandardSocketOptions.SO_LINGER, 0);
            }
            channel.write(ByteBuffer.wrap(bytes));
        } catch (IOException e) {
            // the acceptor was faster: it closed what it did not like
            channel.close();
        }
        if (bytesOf(kind) < 2) {
            keep(channel);
        } else {
            channel.close();
        }
    }

    private static int bytesOf(int kind) {
        return kind < 2 ? kind : Integer.MAX_VALUE;
    }

    private void keep(SocketChannel channel) throws IOException {
        synchronized (kept) {
            kept.add(channel);
            if (kept.size() > KEPT) {
                kept.remove().close();
            }
        }
    }

    private byte[] bytes(int kind, Random random) {
        switch (kind) {
            case 0: // half open: connected, and says nothing
                return new byte[0];
            case 1: // slow: the first byte, and then waits
                return new byte[] {hello[0]};
            case 2: // random bytes
                return random(random, 1 + random.nextInt(8192));
            case 3: // the right first bytes, and then random ones
                return TlsBytes.join(TlsBytes.start(hello), random(random, random.nextInt(8192)));
            case 4: // another protocol
                return "GET / HTTP/1.1\r\nHost: x\r\n\r\n".getBytes(StandardCharsets.US_ASCII);
            case 5: // a hello that ends in the middle
                return Arrays.copyOf(hello, 1 + random.nextInt(hello.length - 1));
            case 6: // a length that nobody has
                return new byte[] {hello[0], hello[1], hello[2], -1, -1, 1, 2, 3};
            case 7: // a whole hello with a wrong proof
                return hello;
            case 8: // a flood of bytes
                return random(random, 100_000);
            default: // a whole hello, and more
                return TlsBytes.join(hello, random(random, 1000));
        }
    }

    private static byte[] random(Random random, int count) {
        byte[] bytes = new byte[count];
        random.nextBytes(bytes);
        return bytes;
    }
}
