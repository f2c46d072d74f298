package io.djltp.job;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** Only who proves that it knows the key is let in, and who is slow is dropped. */
public class MemberAcceptorTest {

    private static final byte[] KEY = Proof.controlKey(new byte[] {1, 2, 3}, "");
    private static final byte[] PAYLOAD = {9, 8, 7};

    private final BlockingQueue<byte[]> members = new LinkedBlockingQueue<>();
    private final List<SocketChannel> channels = new ArrayList<>();
    private MemberAcceptor acceptor;
    private int port;

    @BeforeMethod
    void open() throws IOException {
        members.clear();
        ServerSocketChannel server = Jobs.bind();
        port = MasterPort.getPort(server);
        acceptor =
                new MemberAcceptor(
                        server,
                        KEY,
                        (channel, payload) -> {
                            synchronized (channels) {
                                channels.add(channel);
                            }
                            members.add(payload);
                        });
        acceptor.start("accept");
    }

    @AfterMethod
    void close() {
        acceptor.close();
        synchronized (channels) {
            channels.forEach(Dialer::closeQuietly);
            channels.clear();
        }
    }

    @Test(timeOut = 30_000)
    public void aMemberIsLetIn() throws Exception {
        dial();
        Assert.assertEquals(members.poll(5, TimeUnit.SECONDS), PAYLOAD);
    }

    /** What one connection said does not serve for another: its nonce is not the same. */
    @Test(timeOut = 30_000)
    public void aRepeatedProofIsNone() throws Exception {
        byte[] said;
        try (SocketChannel honest = connect()) {
            byte[] greeting = read(honest, Proof.hello().length + Proof.BYTES);
            byte[] server = Arrays.copyOfRange(greeting, Proof.hello().length, greeting.length);
            said = answer(server);
            honest.write(ByteBuffer.wrap(said));
            Assert.assertEquals(members.poll(5, TimeUnit.SECONDS), PAYLOAD);
            Assert.assertEquals(read(honest, Proof.BYTES).length, Proof.BYTES);
        }
        try (SocketChannel thief = connect()) {
            read(thief, Proof.hello().length + Proof.BYTES);
            thief.write(ByteBuffer.wrap(said));
            Assert.assertTrue(isClosed(thief));
        }
        Assert.assertEquals(acceptor.wrongKeys(), 1);
        Assert.assertTrue(members.isEmpty());
    }

    @Test(timeOut = 30_000)
    public void whoIsTooSlowIsDropped() throws Exception {
        long start = System.nanoTime();
        try (SocketChannel silent = connect();
                SocketChannel slow = connect()) {
            for (SocketChannel channel : List.of(silent, slow)) {
                read(channel, Proof.hello().length + Proof.BYTES);
            }
            slow.write(ByteBuffer.wrap(Proof.hello()));
            Assert.assertTrue(isClosed(silent));
            Assert.assertTrue(isClosed(slow));
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        Assert.assertTrue(seconds > 4.9 && seconds < 10, "" + seconds);
        Assert.assertEquals(acceptor.malformed(), 2);
    }

    @Test(timeOut = 30_000)
    public void whenTooManyAreAtItTheOldestIsDropped() throws Exception {
        List<SocketChannel> silent = new ArrayList<>();
        try {
            for (int i = 0; i < MemberAcceptor.MAX_PENDING + 10; i++) {
                SocketChannel channel = connect();
                silent.add(channel);
                read(channel, Proof.hello().length + Proof.BYTES);
            }
            for (SocketChannel channel : silent.subList(0, 10)) {
                Assert.assertTrue(isClosed(channel));
            }
            Assert.assertEquals(acceptor.malformed(), 10);
            dial();
            Assert.assertEquals(members.poll(5, TimeUnit.SECONDS), PAYLOAD);
        } finally {
            silent.forEach(Dialer::closeQuietly);
        }
    }

    private void dial() throws Exception {
        Dialer dialer = new Dialer(Jobs.LOOPBACK, List.of(port), KEY, channel -> PAYLOAD);
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(5);
        dialer.dial(deadline, () -> false).close();
    }

    private SocketChannel connect() throws IOException {
        return SocketChannel.open(new InetSocketAddress(Jobs.LOOPBACK, port));
    }

    private static byte[] answer(byte[] server) {
        byte[] nonce = Proof.nonce();
        byte[] proof = Proof.prove(KEY, Proof.CLIENT, server, nonce, PAYLOAD);
        int length = Proof.hello().length + 2 * Proof.BYTES + 2 + PAYLOAD.length;
        ByteBuffer bytes = ByteBuffer.allocate(length).put(Proof.hello()).put(nonce);
        return bytes.putShort((short) PAYLOAD.length).put(PAYLOAD).put(proof).array();
    }

    private static byte[] read(SocketChannel channel, int count) throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate(count);
        while (bytes.hasRemaining() && channel.read(bytes) >= 0) {
            continue;
        }
        return bytes.array();
    }

    private static boolean isClosed(SocketChannel channel) {
        try {
            return channel.read(ByteBuffer.allocate(1)) < 0;
        } catch (IOException e) {
            return true; // reset, because it was closed with something unread
        }
    }
}
