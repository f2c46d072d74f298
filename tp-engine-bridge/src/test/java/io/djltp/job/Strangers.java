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
        boolean waits = kind < 2;
        try {
            channel.connect(new InetSocketAddress(Jobs.LOOPBACK, port));
            made.incrementAndGet();
            if (kind % 2 == 0) {
                // leaves nothing behind but a reset
                channel.setOption(StandardSocketOptions.SO_LINGER, 0);
            }
            channel.write(ByteBuffer.wrap(bytes(kind, random)));
        } catch (IOException e) {
            waits = false; // the acceptor was faster: it closed what it did not like
        }
        if (!waits) {
            channel.close();
            return;
        }
        synchronized (kept) {
            kept.add(channel);
            if (kept.size() > KEPT) {
                kept.remove().close();
            }
        }
    }

    private byte[] bytes(int kind, Random random) {
        return switch (kind) {
            case 0 -> new byte[0]; // half open: connected, and says nothing
            case 1 -> new byte[] {hello[0]}; // slow: the first byte, and then waits
            case 2 -> random(random, 1 + random.nextInt(8192));
            case 3 -> TlsBytes.join(TlsBytes.start(hello), random(random, random.nextInt(8192)));
            case 4 -> "GET / HTTP/1.1\r\nHost: x\r\n\r\n".getBytes(StandardCharsets.US_ASCII);
            case 5 -> Arrays.copyOf(hello, 1 + random.nextInt(hello.length - 1)); // ends
            case 6 -> new byte[] {hello[0], hello[1], hello[2], -1, -1, 1, 2, 3}; // no length
            case 7 -> hello; // with a wrong proof
            case 8 -> random(random, 100_000); // a flood
            default -> TlsBytes.join(hello, random(random, 1000));
        };
    }

    private static byte[] random(Random random, int count) {
        byte[] bytes = new byte[count];
        random.nextBytes(bytes);
        return bytes;
    }
}
