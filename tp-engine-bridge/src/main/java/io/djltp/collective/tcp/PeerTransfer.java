package io.djltp.collective.tcp;

import io.djltp.collective.CollectiveException;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * What goes to one peer and comes from it in one exchange: each way a header that says what the
 * sender has called, and the bytes of the tensor, straight from and to its memory.
 */
final class PeerTransfer {

    private static final int FIXED = 4 + 4 + 8; // lengths of the two texts and of the payload
    private static final int TEXT_LIMIT = 1 << 20;

    private final SocketChannel channel;
    private final ByteBuffer[] outgoing; // header and payload
    private long unsent;

    private final ByteBuffer fixed = ByteBuffer.allocate(FIXED);
    private final ByteBuffer[] payload;
    private final long expected;
    private ByteBuffer texts;
    private long left; // of the payload
    private int agreementLength;

    /**
     * Creates the transfer with one peer.
     *
     * @param channel the connection, not blocking
     * @param header the header to send, its fixed part without the length of the payload
     * @param sent what to send
     * @param received where to put what comes
     */
    PeerTransfer(SocketChannel channel, byte[] header, ByteBuffer[] sent, ByteBuffer[] received) {
        this.channel = channel;
        ByteBuffer first = ByteBuffer.wrap(header.clone());
        first.putLong(8, remaining(sent));
        outgoing = new ByteBuffer[sent.length + 1];
        outgoing[0] = first;
        System.arraycopy(sent, 0, outgoing, 1, sent.length);
        unsent = remaining(outgoing);
        payload = received;
        expected = remaining(received);
        left = expected;
    }

    /** Makes the header of a call, for all peers. */
    static byte[] header(String agreement, String description) {
        byte[] first = agreement.getBytes(StandardCharsets.UTF_8);
        byte[] second = description.getBytes(StandardCharsets.UTF_8);
        return ByteBuffer.allocate(FIXED + first.length + second.length)
                .putInt(first.length)
                .putInt(second.length)
                .putLong(0)
                .put(first)
                .put(second)
                .array();
    }

    private static long remaining(ByteBuffer[] buffers) {
        long sum = 0;
        for (ByteBuffer buffer : buffers) {
            sum += buffer.remaining();
        }
        return sum;
    }

    boolean isSent() {
        return unsent == 0;
    }

    boolean hasHeader() {
        return texts != null && !texts.hasRemaining();
    }

    boolean isReceived() {
        return hasHeader() && left == 0;
    }

    boolean isDone() {
        return isSent() && isReceived();
    }

    /** Returns whether the peer has called what this rank has: only once the header is here. */
    boolean agreesWith(byte[] header) {
        int length = ByteBuffer.wrap(header).getInt(0);
        return length == agreementLength
                && Arrays.equals(header, FIXED, FIXED + length, texts.array(), 0, agreementLength);
    }

    /** Returns what the peer has called, in words. */
    String description() {
        int length = texts.array().length - agreementLength;
        return new String(texts.array(), agreementLength, length, StandardCharsets.UTF_8);
    }

    /** Sends and receives as much as goes without waiting. Returns whether anything moved. */
    boolean advance(boolean mayReceivePayload) throws IOException {
        boolean moved = false;
        if (unsent > 0) {
            long count = channel.write(outgoing);
            unsent -= count;
            moved = count > 0;
        }
        if (!hasHeader()) {
            moved |= receiveHeader();
        }
        if (mayReceivePayload && hasHeader() && left > 0) {
            long count = read(payload);
            left -= count;
            moved |= count > 0;
        }
        return moved;
    }

    private boolean receiveHeader() throws IOException {
        boolean moved = false;
        if (fixed.hasRemaining()) {
            moved = read(new ByteBuffer[] {fixed}) > 0;
            if (fixed.hasRemaining()) {
                return moved;
            }
            agreementLength = fixed.getInt(0);
            int length = agreementLength + fixed.getInt(4);
            if (agreementLength < 0 || length < agreementLength || length > TEXT_LIMIT) {
                throw new IOException("what comes from there is no message of a collective");
            }
            texts = ByteBuffer.allocate(length);
        }
        return moved | read(new ByteBuffer[] {texts}) > 0;
    }

    /** Refuses a payload of another size than this rank expects. */
    void checkSize(int peer, int rank) {
        long size = fixed.getLong(8);
        if (size != expected) {
            throw new CollectiveException(
                    "rank "
                            + peer
                            + " sends "
                            + size
                            + " bytes to rank "
                            + rank
                            + ", which expects "
                            + expected
                            + ", in "
                            + description());
        }
    }

    private long read(ByteBuffer[] buffers) throws IOException {
        long count = channel.read(buffers);
        if (count < 0) {
            throw new EOFException("closed by the other side");
        }
        return count;
    }
}
