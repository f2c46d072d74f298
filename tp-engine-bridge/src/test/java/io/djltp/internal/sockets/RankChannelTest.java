package io.djltp.internal.sockets;

import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Random;

/** What comes is what was sent, and nobody on the way can read or change it. */
public class RankChannelTest {

    private static final byte[] SECRET = "a secret of the two".getBytes(StandardCharsets.UTF_8);
    private static final ByteBuffer TEXT =
            ByteBuffer.wrap("what nobody else reads".getBytes(StandardCharsets.UTF_8));
    private static final String FIRST_RECORD =
            "0016ffe9935f6420b4424eab11ca689458e591265416df5e3849d37ebe0a8dd9ab910884961c722b6aa9";
    private static final int RECORD = 4 + TEXT.remaining() + 16; // length, text and tag

    private SocketChannel left;
    private SocketChannel right;

    @BeforeMethod
    public void connect() throws IOException {
        try (ServerSocketChannel server = ServerSocketChannel.open()) {
            server.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
            left = SocketChannel.open(server.getLocalAddress());
            right = server.accept();
            left.configureBlocking(false);
        }
    }

    @AfterMethod(alwaysRun = true)
    public void close() {
        RankSockets.closeQuietly(left);
        RankSockets.closeQuietly(right);
    }

    /** Both talk at once, and each key is good for few records. */
    @Test(timeOut = 60_000)
    public void whatComesIsWhatWasSent() throws IOException {
        right.configureBlocking(false);
        RankChannel one = new RankChannel(left, SECRET, 1, 0, 3);
        RankChannel other = new RankChannel(right, SECRET, 0, 1, 3);
        Random random = new Random(1);
        for (int size : new int[] {1, 15, 65_280, 65_281, 3_000_000, 0, 2}) {
            for (int cut : new int[] {0, Math.min(size, 7), size / 2}) {
                byte[] there = new byte[size];
                byte[] back = new byte[size];
                random.nextBytes(there);
                random.nextBytes(back);
                ByteBuffer[][] open = {
                    full(there, cut),
                    full(back, size - cut),
                    empty(size, size - cut),
                    empty(size, 0)
                };
                do {
                    one.write(open[0]);
                    other.write(open[1]);
                    other.read(open[2]);
                    one.read(open[3]);
                } while (one.isPending()
                        || other.isPending()
                        || Arrays.stream(open)
                                .flatMap(Arrays::stream)
                                .anyMatch(ByteBuffer::hasRemaining));
                Assert.assertEquals(bytes(open[2]), there);
                Assert.assertEquals(bytes(open[3]), back);
            }
        }
    }

    /** The rest would go in a segment of its own, which costs as much as the encryption. */
    @Test(timeOut = 60_000)
    public void aRecordFitsASegmentOfLoopback() throws IOException {
        int headers = 40 + 32; // of IPv6, and of TCP with timestamps
        ByteBuffer length = ByteBuffer.allocate(Short.BYTES);
        new RankChannel(left, SECRET, 1, 0).write(full(new byte[100_000], 0));
        readAll(right, length);
        int record = 4 + Short.toUnsignedInt(length.getShort(0)) + 16;
        Assert.assertTrue(record <= 0xffff - headers && record > 0xf000, record + " bytes");
    }

    /** Returns bytes in buffers, the first part in an array, the rest in native memory. */
    private static ByteBuffer[] full(byte[] bytes, int cut) {
        ByteBuffer[] parts = empty(bytes.length, cut);
        parts[0].put(bytes, 0, cut).flip();
        parts[1].put(bytes, cut, bytes.length - cut).flip();
        return parts;
    }

    private static ByteBuffer[] empty(int size, int cut) {
        return new ByteBuffer[] {ByteBuffer.allocate(cut), ByteBuffer.allocateDirect(size - cut)};
    }

    private static byte[] bytes(ByteBuffer[] parts) {
        ByteBuffer all =
                ByteBuffer.allocate(Arrays.stream(parts).mapToInt(ByteBuffer::limit).sum());
        Arrays.stream(parts).forEach(part -> all.put(part.flip()));
        return all.array();
    }

    @Test(timeOut = 60_000)
    public void whoIsOnTheWayReadsAndChangesNothing() throws IOException {
        RankChannel sender = new RankChannel(left, SECRET, 1, 0);
        sender.write(new ByteBuffer[] {TEXT.duplicate()});
        sender.write(new ByteBuffer[] {TEXT.duplicate()});
        byte[] wire = new byte[2 * RECORD];
        readAll(right, ByteBuffer.wrap(wire));
        byte[] first = Arrays.copyOf(wire, RECORD);
        byte[] second = Arrays.copyOfRange(wire, RECORD, 2 * RECORD);
        Assert.assertFalse(new String(wire, StandardCharsets.ISO_8859_1).contains("nobody"));
        Assert.assertNotEquals(first, second, "of the same text");
        assertRead(wire, 2, 0, 1);
        // what Java's own provider writes, whichever encrypts here
        Assert.assertEquals(HexFormat.of().formatHex(first), FIRST_RECORD);
        for (int i = 0; i < RECORD; i++) {
            byte[] flipped = wire.clone();
            flipped[i] ^= (byte) (1 << i % Byte.SIZE);
            assertRead(flipped, 0, 0, 1);
            flipped = wire.clone();
            flipped[RECORD + i] ^= (byte) (1 << i % Byte.SIZE);
            assertRead(flipped, 1, 0, 1);
        }
        assertRead(second, 0, 0, 1); // one is left out
        assertRead(ByteBuffer.allocate(2 * RECORD).put(first).put(first).array(), 1, 0, 1);
        assertRead(wire, 0, 1, 0); // sent back to where they came from
        assertRead(wire, 0, 0, 2); // given to another connection of the rank
    }

    /** Checks how many texts a rank reads before it finds that they were changed. */
    private static void assertRead(byte[] wire, int texts, int own, int other) throws IOException {
        RankChannelTest pair = new RankChannelTest();
        pair.connect();
        try {
            pair.left.write(ByteBuffer.wrap(wire));
            pair.left.shutdownOutput();
            RankChannel receiver = new RankChannel(pair.right, SECRET, own, other);
            for (int i = 0; i < texts; i++) {
                ByteBuffer text = ByteBuffer.allocate(TEXT.remaining());
                readAll(receiver, text);
                Assert.assertEquals(text.flip(), TEXT);
            }
            ByteBuffer[] next = {ByteBuffer.allocate(1)};
            if (texts * RECORD == wire.length) {
                Assert.assertEquals(receiver.read(next), -1);
            } else {
                Refusals.expect(IOException.class, () -> receiver.read(next), "changed on the way");
            }
        } finally {
            pair.close();
        }
    }

    private static void readAll(SocketChannel from, ByteBuffer to) throws IOException {
        while (to.hasRemaining()) {
            Assert.assertTrue(from.read(to) >= 0);
        }
    }

    private static void readAll(RankChannel from, ByteBuffer to) throws IOException {
        while (to.hasRemaining()) {
            Assert.assertTrue(from.read(new ByteBuffer[] {to}) >= 0);
        }
    }

    /** It is on the class path of the tests. */
    @Test
    public void amazonsProviderEncryptsWhereItCan() throws GeneralSecurityException {
        String platform = System.getProperty("os.name") + " " + System.getProperty("os.arch");
        if (!platform.equals("Linux amd64")) {
            throw new SkipException("The jar of Amazon's provider has nothing for " + platform);
        }
        String provider = RankChannel.cipher().getProvider().getName();
        Assert.assertEquals(provider, "AmazonCorrettoCryptoProvider");
    }

    /** Both sides change the keys at the same record. */
    @Test(timeOut = 60_000)
    public void recordsOfAnotherKeyAreNotRead() throws IOException {
        RankChannel sender = new RankChannel(left, SECRET, 1, 0, 2);
        RankChannel receiver = new RankChannel(right, SECRET, 0, 1, 3);
        for (int i = 0; i < 3; i++) {
            sender.write(new ByteBuffer[] {TEXT.duplicate()});
        }
        ByteBuffer texts = ByteBuffer.allocate(2 * TEXT.remaining());
        readAll(receiver, texts);
        Refusals.expect(
                IOException.class,
                () -> readAll(receiver, ByteBuffer.allocate(TEXT.remaining())),
                "changed on the way");
    }
}
