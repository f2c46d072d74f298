package io.djltp.job;

import io.djltp.environment.MasterPort;
import io.djltp.internal.environment.Admission;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** Only who proves that it knows the key is let in, and who is slow is dropped. */
public class DoorTest {

    private static final byte[] SECRET = {1, 2, 3};
    private static final Hello HELLO = new Hello(1, "1.0", 1, 2, 2, "h", 7, Jobs.LOOPBACK, null);

    private final BlockingQueue<Hello> members = new LinkedBlockingQueue<>();
    private final JobTls tls = new JobTls(SECRET, "");
    private JobLoop loop;
    private Door door;
    private int port;

    @BeforeMethod
    void open() throws IOException {
        members.clear();
        ServerSocketChannel server = Jobs.bind();
        port = MasterPort.getPort(server);
        loop = new JobLoop();
        Link.Events events =
                new Link.Events() {

                    @Override
                    public void received(Link link, Message message) {
                        door.letIn(link.channel);
                        members.add(message.content(Hello.class));
                    }

                    @Override
                    public void ended(Link link) {
                        // the door counts it
                    }
                };
        door = new Door();
        door.open(loop, server, tls, 10_000, events);
    }

    @AfterMethod
    void close() {
        loop.close();
    }

    @Test(timeOut = 30_000)
    public void aMemberIsLetIn() throws Exception {
        comeIn();
    }

    /** What one connection said does not serve for another: the session keys are not the same. */
    @Test(timeOut = 30_000)
    public void aRepeatedProofIsNone() throws Exception {
        byte[] said = TlsBytes.hello(tls);
        for (int i = 0; i < 2; i++) {
            try (SocketChannel thief = connect()) {
                thief.write(ByteBuffer.wrap(said));
                // the answer, sealed with a key that only who has drawn its half knows
                Assert.assertTrue(thief.read(ByteBuffer.allocate(10_000)) > 100);
                thief.write(ByteBuffer.wrap(new byte[] {23, 3, 3, 0, 40}));
                thief.write(ByteBuffer.wrap(new byte[40]));
                Assert.assertTrue(isClosed(thief));
            }
        }
        Assert.assertTrue(members.isEmpty());
    }

    @Test(timeOut = 30_000)
    public void aWrongKeyIsCountedAsSuch() throws Exception {
        for (int i = 0; i < 3; i++) {
            Assert.expectThrows(
                    IOException.class,
                    () -> new FakeMember(port, "x".getBytes(StandardCharsets.UTF_8)));
        }
        while (door.wrongKeys() < 3) {
            TimeUnit.MILLISECONDS.sleep(1); // the member knows it first
        }
        Assert.assertEquals(door.wrongKeys(), 3);
        Assert.assertEquals(door.strangers(), 0);
        comeIn();
    }

    @DataProvider
    static Object[][] slow() throws IOException {
        byte[] hello = TlsBytes.hello(new JobTls(SECRET, ""));
        byte[] half = java.util.Arrays.copyOf(hello, hello.length / 2);
        return new Object[][] {{new byte[0]}, {new byte[] {hello[0]}}, {half}, {hello}};
    }

    /** Nothing, a byte, half a frame, a whole one; and who has the key and says no more. */
    @Test(dataProvider = "slow", timeOut = 30_000)
    public void whoIsTooSlowIsDropped(byte[] said) throws Exception {
        long start = System.nanoTime();
        try (SocketChannel slow = connect();
                FakeMember silent = new FakeMember(port, SECRET);
                FakeMember half = new FakeMember(port, SECRET)) {
            slow.write(ByteBuffer.wrap(said));
            half.write(new byte[] {0, 0, 1, 0, 0, 0});
            comeIn();
            Assert.assertTrue(System.nanoTime() - start < 4e9, "nobody waits for them");
            Assert.assertTrue(isClosed(slow));
            Assert.expectThrows(IOException.class, silent::read);
            Assert.expectThrows(IOException.class, half::read);
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        Assert.assertTrue(seconds > 4.9 && seconds < 10, "" + seconds);
        awaitStrangers(3);
    }

    @Test(timeOut = 30_000)
    public void whenTooManyAreAtItTheOldestIsDropped() throws Exception {
        List<SocketChannel> silent = new ArrayList<>();
        try {
            for (int i = 0; i < Admission.MAX_PENDING + 10; i++) {
                silent.add(connect());
            }
            for (SocketChannel channel : silent.subList(0, 10)) {
                Assert.assertTrue(isClosed(channel));
            }
            awaitStrangers(10);
            comeIn();
        } finally {
            for (SocketChannel channel : silent) {
                channel.close();
            }
        }
    }

    private void comeIn() throws Exception {
        try (FakeMember member = new FakeMember(port, SECRET)) {
            member.write(new Message(Message.Type.HELLO, HELLO).encode());
            Assert.assertEquals(members.poll(5, TimeUnit.SECONDS), HELLO);
        }
    }

    private void awaitStrangers(int count) throws InterruptedException {
        while (door.strangers() < count) {
            TimeUnit.MILLISECONDS.sleep(1); // the other side knows it first
        }
        Assert.assertEquals(door.strangers(), count);
    }

    private SocketChannel connect() throws IOException {
        return SocketChannel.open(new InetSocketAddress(Jobs.LOOPBACK, port));
    }

    private static boolean isClosed(SocketChannel channel) {
        try {
            ByteBuffer rest = ByteBuffer.allocate(10_000);
            while (channel.read(rest.clear()) >= 0) {
                continue;
            }
            return true;
        } catch (IOException e) {
            return true; // reset, because it was closed with something unread
        }
    }
}
