package io.djltp.internal.sockets;

import org.bouncycastle.crypto.digests.SHA256Digest;
import org.bouncycastle.crypto.generators.HKDFBytesGenerator;
import org.bouncycastle.crypto.params.HKDFParameters;
import org.jspecify.annotations.Nullable;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.security.GeneralSecurityException;
import java.security.NoSuchAlgorithmException;
import java.security.Provider;

import javax.crypto.AEADBadTagException;
import javax.crypto.Cipher;
import javax.crypto.spec.GCMParameterSpec;
import javax.crypto.spec.SecretKeySpec;

/**
 * The connection of two ranks, in clear or encrypted: then as records of AES-128-GCM, each after 4
 * bytes for its length, with its number as the nonce. The keys of the two directions follow by HKDF
 * of SHA-256 (RFC 5869) from what only the processes of the job know, and new ones every {@value
 * #RECORDS_OF_KEY} records. Used by one thread.
 */
public final class RankChannel implements Closeable {

    /** 2^34 blocks of AES, as many as TLS 1.3 allows (RFC 8446, section 5.5). */
    private static final long RECORDS_OF_KEY = 1 << 22;

    /**
     * Bytes of a record before they are encrypted. The record is to fit a segment of loopback, of
     * 65463 bytes: a second one, of the rest, would cost as much as the encryption.
     */
    private static final int MOST = 0xff00;

    private static final int TAG = 16;
    private static final int RECORD = Integer.BYTES + MOST + TAG;
    private static final String AES = "AES/GCM/NoPadding";
    private static final String AMAZON =
            "com.amazon.corretto.crypto.provider.AmazonCorrettoCryptoProvider";
    private static final String CHANGED =
            "what has come was changed on the way: somebody else has access to the network between"
                    + " the processes, or a device there is broken";

    private final SocketChannel socket;
    private final @Nullable Sealed sealed;

    /**
     * Creates a connection in clear.
     *
     * @param socket the connected socket
     */
    public RankChannel(SocketChannel socket) {
        this.socket = socket;
        sealed = null;
    }

    /**
     * Creates an encrypted connection.
     *
     * @param socket the connected socket
     * @param secret what both sides know, of this connection alone
     * @param own the number of the rank on this side
     * @param other that of the other one
     */
    public RankChannel(SocketChannel socket, byte[] secret, int own, int other) {
        this(socket, secret, own, other, RECORDS_OF_KEY);
    }

    /** The same with another number of records of a key. */
    RankChannel(SocketChannel socket, byte[] secret, int own, int other, long recordsOfKey) {
        this.socket = socket;
        sealed =
                new Sealed(
                        new Direction(Cipher.ENCRYPT_MODE, secret, own, other, recordsOfKey),
                        new Direction(Cipher.DECRYPT_MODE, secret, other, own, recordsOfKey));
    }

    /** {@return the socket, over which nobody else may talk} */
    public SocketChannel socket() {
        return socket;
    }

    /**
     * Writes what goes without waiting.
     *
     * @param sources what to write, from the first buffer that has something left
     * @return the bytes that are taken from the buffers
     * @throws IOException if the connection is lost
     */
    public long write(ByteBuffer[] sources) throws IOException {
        return sealed == null ? socket.write(sources) : sealed.write(sources);
    }

    /** {@return whether something that was taken from buffers is still to be written} */
    public boolean isPending() {
        return sealed != null && sealed.sent.hasRemaining();
    }

    /**
     * Reads what is there without waiting.
     *
     * @param targets where it goes, to the first buffer that has room
     * @return the bytes that have come, or -1 at the end of the connection
     * @throws IOException if the connection is lost, or what has come was changed
     */
    public long read(ByteBuffer[] targets) throws IOException {
        return sealed == null ? socket.read(targets) : sealed.read(targets);
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws IOException {
        socket.close();
    }

    private static @Nullable ByteBuffer first(ByteBuffer[] buffers) {
        for (ByteBuffer each : buffers) {
            if (each.hasRemaining()) {
                return each;
            }
        }
        return null;
    }

    /** Moves bytes from the one to the other, as many as go. */
    private static int move(ByteBuffer from, ByteBuffer to) {
        int count = Math.min(from.remaining(), to.remaining());
        to.put(part(from, count));
        return count;
    }

    /** Takes the first bytes of a buffer. */
    private static ByteBuffer part(ByteBuffer from, int count) {
        ByteBuffer part = from.slice(from.position(), count);
        from.position(from.position() + count);
        return part;
    }

    /**
     * The buffers of an encrypted connection. Records are encrypted in arrays, which takes down to
     * a quarter of the time of native memory. They are sent and received in native memory, because
     * each attempt to write an array copies all that is left of it. Each buffer holds one record:
     * several would not stay in the cache.
     */
    private final class Sealed {

        private final Direction outgoing;
        private final Direction incoming;
        private final ByteBuffer gathered = ByteBuffer.allocate(MOST + TAG); // in both directions
        private final ByteBuffer sent = ByteBuffer.allocateDirect(RECORD).limit(0);
        private final ByteBuffer received = ByteBuffer.allocateDirect(RECORD).limit(0);
        private final ByteBuffer opened = ByteBuffer.allocate(MOST).limit(0);

        Sealed(Direction outgoing, Direction incoming) {
            this.outgoing = outgoing;
            this.incoming = incoming;
        }

        long write(ByteBuffer[] sources) throws IOException {
            long taken = 0;
            if (!sent.hasRemaining() && first(sources) != null) {
                gathered.clear().limit(MOST);
                for (ByteBuffer source : sources) {
                    taken += move(source, gathered);
                }
                int length = gathered.flip().limit();
                ByteBuffer record = gathered.duplicate().clear();
                outgoing.crypt(gathered, record);
                // and its complement, so that a change is found at once, not awaited
                sent.clear().putInt(length << Short.SIZE | ~length & 0xffff);
                sent.put(record.flip()).flip();
            }
            socket.write(sent);
            return taken;
        }

        long read(ByteBuffer[] targets) throws IOException {
            if (!opened.hasRemaining() && length() < 0) {
                received.compact();
                int count = socket.read(received);
                received.flip();
                if (count < 0) {
                    return -1;
                }
            }
            long given = 0;
            for (ByteBuffer target = first(targets); target != null; target = first(targets)) {
                if (opened.hasRemaining()) {
                    given += move(opened, target);
                    continue;
                }
                int length = length();
                if (length < 0) {
                    break;
                }
                received.getInt();
                gathered.clear().put(part(received, length + TAG)).flip();
                incoming.crypt(gathered, opened.clear());
                opened.flip();
            }
            return given;
        }

        /** Returns the length of the record that is here, or -1 if it is not here as a whole. */
        private int length() throws IOException {
            if (received.remaining() < Integer.BYTES) {
                return -1;
            }
            int header = received.getInt(received.position());
            int length = header >>> Short.SIZE;
            if ((header & 0xffff) != (~length & 0xffff) || length > MOST) {
                throw new IOException(CHANGED);
            }
            return received.remaining() < Integer.BYTES + length + TAG ? -1 : length;
        }
    }

    /**
     * Returns the AES of Amazon's Corretto Crypto Provider if it is on the class path and has a
     * native part for this platform, otherwise that of Java: on JDK 17, it takes three times as
     * long.
     */
    static Cipher cipher() throws GeneralSecurityException {
        try {
            Object amazon = Class.forName(AMAZON).getField("INSTANCE").get(null);
            return Cipher.getInstance(AES, (Provider) amazon);
        } catch (ReflectiveOperationException | NoSuchAlgorithmException e) {
            return Cipher.getInstance(AES);
        }
    }

    /** The keys of one direction. */
    private static final class Direction {

        private final int mode;
        private final byte[] secret;
        private final int from;
        private final int to;
        private final long recordsOfKey;
        private final Cipher cipher;
        private @Nullable SecretKeySpec key;
        private long records;

        Direction(int mode, byte[] secret, int from, int to, long recordsOfKey) {
            this.mode = mode;
            this.secret = secret;
            this.from = from;
            this.to = to;
            this.recordsOfKey = recordsOfKey;
            try {
                cipher = cipher();
            } catch (GeneralSecurityException e) {
                throw new IllegalStateException("Java without AES-GCM", e);
            }
        }

        /** Encrypts or decrypts the next record. */
        void crypt(ByteBuffer record, ByteBuffer target) throws IOException {
            try {
                if (key == null || records % recordsOfKey == 0) {
                    key = key(records / recordsOfKey);
                }
                byte[] nonce = ByteBuffer.allocate(12).putLong(4, records++).array();
                cipher.init(mode, key, new GCMParameterSpec(TAG * Byte.SIZE, nonce));
                cipher.doFinal(record, target);
            } catch (AEADBadTagException e) {
                throw new IOException(CHANGED, e);
            } catch (GeneralSecurityException e) {
                throw new IllegalStateException("AES-GCM does not take its key", e);
            }
        }

        private SecretKeySpec key(long number) {
            byte[] info = ByteBuffer.allocate(16).putInt(from).putInt(to).putLong(number).array();
            HKDFBytesGenerator generator = new HKDFBytesGenerator(new SHA256Digest());
            generator.init(new HKDFParameters(secret, null, info));
            byte[] bytes = new byte[16];
            generator.generateBytes(bytes, 0, bytes.length);
            return new SecretKeySpec(bytes, "AES");
        }
    }
}
