package io.djltp.job;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.util.Arrays;

/**
 * The accepting side of a connection whose other side has not proved anything yet. Takes memory
 * only for what a real member would send.
 */
final class Handshake {

    private static final int LENGTH_BYTES = 2;

    private final SocketChannel channel;
    private final byte[] key;
    private final byte[] nonce = Proof.nonce();
    private final byte[] hello = Proof.hello();
    private final long deadline;
    private ByteBuffer buffer = ByteBuffer.allocate(hello.length + Proof.BYTES + LENGTH_BYTES);
    private boolean headerRead;
    private byte[] clientNonce;

    /** What has become of a handshake. */
    enum Outcome {
        /** More is to come. */
        PENDING,
        /** It is a member. */
        MEMBER,
        /** What came is not of this protocol. */
        MALFORMED,
        /** It speaks the protocol, but does not know the key. */
        WRONG_KEY
    }

    Handshake(SocketChannel channel, byte[] key, long deadline) {
        this.channel = channel;
        this.key = key;
        this.deadline = deadline;
    }

    SocketChannel channel() {
        return channel;
    }

    long deadline() {
        return deadline;
    }

    /** Sends what comes first. */
    void greet() throws IOException {
        send(ByteBuffer.allocate(hello.length + nonce.length).put(hello).put(nonce).flip());
    }

    /** Reads what has come. */
    Outcome read() throws IOException {
        int count = channel.read(buffer);
        if (count < 0 || !startsWithHello()) {
            return Outcome.MALFORMED;
        }
        if (buffer.hasRemaining()) {
            return Outcome.PENDING;
        }
        if (!headerRead) {
            return readHeader();
        }
        return readProof();
    }

    /** Returns what the member said. To be called once it is one. */
    byte[] payload() {
        return Arrays.copyOf(buffer.array(), buffer.capacity() - Proof.BYTES);
    }

    private boolean startsWithHello() {
        if (headerRead) {
            return true;
        }
        int length = Math.min(buffer.position(), hello.length);
        return Arrays.equals(buffer.array(), 0, length, hello, 0, length);
    }

    private Outcome readHeader() throws IOException {
        buffer.position(hello.length);
        clientNonce = new byte[Proof.BYTES];
        buffer.get(clientNonce);
        int length = Short.toUnsignedInt(buffer.getShort());
        if (length > Proof.MAX_PAYLOAD) {
            return Outcome.MALFORMED;
        }
        buffer = ByteBuffer.allocate(length + Proof.BYTES);
        headerRead = true;
        return read();
    }

    private Outcome readProof() throws IOException {
        byte[] payload = payload();
        int length = payload.length;
        byte[] proof = Arrays.copyOfRange(buffer.array(), length, length + Proof.BYTES);
        if (!Proof.equal(proof, Proof.prove(key, Proof.CLIENT, nonce, clientNonce, payload))) {
            return Outcome.WRONG_KEY;
        }
        // a member waits for the answer before it says anything else
        if (channel.read(ByteBuffer.allocate(1)) != 0) {
            return Outcome.MALFORMED;
        }
        send(ByteBuffer.wrap(Proof.prove(key, Proof.SERVER, nonce, clientNonce, payload)));
        return Outcome.MEMBER;
    }

    private void send(ByteBuffer bytes) throws IOException {
        channel.write(bytes);
        if (bytes.hasRemaining()) {
            throw new IOException("no room for the first bytes of a connection");
        }
    }
}
