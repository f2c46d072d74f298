package io.djltp.internal.collective.tcp;

import io.djltp.collective.CollectiveException;
import io.djltp.internal.Errors;
import io.djltp.internal.collective.CollectiveCall;
import io.djltp.internal.collective.GroupFailure;
import io.djltp.internal.sockets.RankChannel;

import org.jspecify.annotations.Nullable;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Sends something to every peer and receives something from every peer, all at once: the one
 * primitive that the collectives of the {@code tcp} backend are made of.
 *
 * <p>With every message goes what the sender has called, so that ranks that call different things
 * find out instead of mistaking one's bytes for the other's.
 */
final class PeerExchange implements AutoCloseable {

    private static final long SPIN_NANOS = 20_000;
    private static final long WAIT_MILLIS = 50;
    private static final long HEADER_NANOS = 1_000_000_000; // for those that also disagree

    private final RankChannel[] peers; // null for this rank
    private final int rank;
    private final GroupFailure failure;
    private final Selector selector;
    private int[] watched = {}; // the group that has last waited: the others are not looked at

    /**
     * Takes over the connections of a rank.
     *
     * @param peers the connection to every rank, {@code null} for this one
     * @param rank this rank
     * @param failure the failure of the group, which ends an exchange
     */
    PeerExchange(RankChannel[] peers, int rank, GroupFailure failure) throws IOException {
        this.peers = peers;
        this.rank = rank;
        this.failure = failure;
        selector = Selector.open();
        for (int i = 0; i < peers.length; i++) {
            if (i != rank) {
                peers[i].socket().configureBlocking(false);
                peers[i].socket().register(selector, 0);
            }
        }
    }

    /** What a rank has with its peers in one exchange. */
    interface Buffers {

        /** Returns a peer's buffers: direct ones, from their positions to their limits. */
        ByteBuffer[] of(int peer);
    }

    /**
     * Exchanges messages with some of the peers.
     *
     * @param members the ranks that take part, in the order of their group
     * @param call what this rank has called
     * @param sent what goes to each member, by its place in {@code members}
     * @param received where goes what comes from each member
     * @param timeout how long it may take
     * @throws IOException if a connection is lost
     */
    void run(int[] members, CollectiveCall call, Buffers sent, Buffers received, Duration timeout)
            throws IOException {
        new Run(members, call, sent, received, timeout).complete();
    }

    /** Lets an exchange that waits look at the failure of the group. */
    void wakeUp() {
        selector.wakeup();
    }

    /** Closes the connections, so that the peers find out. */
    @Override
    public void close() {
        for (RankChannel peer : peers) {
            if (peer != null) {
                try {
                    peer.close();
                } catch (IOException e) {
                    continue; // it is closed all the same
                }
            }
        }
        try {
            selector.close();
        } catch (IOException e) {
            return; // nothing depends on it
        }
    }

    /** One exchange under way. */
    private final class Run {

        private final int[] members;
        private final CollectiveCall call;
        private final byte[] header;
        private final PeerTransfer[] transfers;
        private final Duration timeout;
        private final long begin = System.nanoTime();
        private long moved = begin;
        private boolean disagreement;

        Run(int[] members, CollectiveCall call, Buffers sent, Buffers received, Duration timeout) {
            this.members = members;
            this.call = call;
            this.timeout = timeout;
            header = PeerTransfer.header(call.getAgreement(), call.toString());
            transfers = new PeerTransfer[members.length];
            for (int i = 0; i < members.length; i++) {
                if (members[i] != rank) {
                    RankChannel peer = peers[members[i]];
                    transfers[i] = new PeerTransfer(peer, header, sent.of(i), received.of(i));
                }
            }
        }

        void complete() throws IOException {
            call.beginWait();
            while (advance()) {
                failure.check(rank, peers.length);
                long now = System.nanoTime();
                if (disagreement && (now - begin > HEADER_NANOS || allHeadersHere())) {
                    throw new CollectiveException(describeDisagreement());
                }
                if (now - begin > timeout.toNanos()) {
                    throw new IOException(describeTimeout());
                }
                if (now - moved > SPIN_NANOS) {
                    await();
                }
            }
        }

        /** Moves what can be moved. Returns whether anything is left to do. */
        private boolean advance() throws IOException {
            boolean left = false;
            for (int i = 0; i < transfers.length; i++) {
                PeerTransfer transfer = transfers[i];
                if (transfer != null && !transfer.isDone()) {
                    advance(members[i], transfer);
                    left |= !transfer.isDone();
                }
            }
            return left || disagreement;
        }

        private void advance(int peer, PeerTransfer transfer) throws IOException {
            boolean hadHeader = transfer.hasHeader();
            boolean change;
            try {
                change = transfer.advance(hadHeader && !disagreement);
                if (!hadHeader && transfer.hasHeader()) {
                    if (!transfer.agreesWith(header)) {
                        disagreement = true;
                    } else if (!disagreement) {
                        transfer.checkSize(peer, rank);
                        transfer.advance(true);
                    }
                    if (call.isWaiting() && allHeadersHere()) {
                        call.endWait();
                    }
                }
            } catch (IOException e) {
                throw new IOException(
                        "the connection to rank %s was lost in %s (%s)"
                                .formatted(peer, call, e.getMessage()),
                        e);
            }
            if (change) {
                moved = System.nanoTime();
            }
        }

        private void await() throws IOException {
            if (watched != members) {
                for (int peer : watched) {
                    watch(peer, 0);
                }
                watched = members;
            }
            for (int i = 0; i < transfers.length; i++) {
                if (transfers[i] != null) {
                    int interest = transfers[i].isSent() ? 0 : SelectionKey.OP_WRITE;
                    interest |= transfers[i].isReceived() ? 0 : SelectionKey.OP_READ;
                    watch(members[i], interest);
                }
            }
            selector.select(key -> {}, WAIT_MILLIS);
        }

        private void watch(int peer, int interest) {
            if (peer != rank) {
                SelectionKey key = peers[peer].socket().keyFor(selector);
                if (key.interestOps() != interest) {
                    key.interestOps(interest);
                }
            }
        }

        private boolean allHeadersHere() {
            return Arrays.stream(transfers).allMatch(each -> each == null || each.hasHeader());
        }

        private String describeDisagreement() {
            List<String> calls = new ArrayList<>();
            for (int i = 0; i < members.length; i++) {
                PeerTransfer transfer = transfers[i];
                String other = "" + call;
                if (transfer != null) {
                    other = transfer.hasHeader() ? transfer.description() : CollectiveCall.NOT_YET;
                }
                calls.add("rank " + members[i] + " " + other);
            }
            return CollectiveCall.describeDifference(calls);
        }

        private String describeTimeout() {
            List<String> missing = new ArrayList<>();
            for (int i = 0; i < members.length; i++) {
                if (transfers[i] != null && !transfers[i].isDone()) {
                    missing.add("rank " + members[i]);
                }
            }
            return call.timedOut(timeout, rank, missing);
        }
    }

    /**
     * What goes to one peer and comes from it in one exchange: each way a header that says what the
     * sender has called, and the bytes of the tensor, straight from and to its memory.
     */
    private static final class PeerTransfer {

        private static final int FIXED = 4 + 4 + 8; // lengths of the two texts and of the payload
        private static final int TEXT_LIMIT = 1 << 20;

        private final RankChannel channel;
        private final ByteBuffer[] outgoing; // header and payload
        private long unsent;

        private final ByteBuffer fixed = ByteBuffer.allocate(FIXED);
        private final ByteBuffer[] payload;
        private final long expected;
        private @Nullable ByteBuffer texts;
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
        PeerTransfer(RankChannel channel, byte[] header, ByteBuffer[] sent, ByteBuffer[] received) {
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
            return Arrays.stream(buffers).mapToLong(ByteBuffer::remaining).sum();
        }

        boolean isSent() {
            return unsent == 0 && !channel.isPending();
        }

        boolean hasHeader() {
            return texts != null && !texts.hasRemaining();
        }

        private byte[] texts() {
            return Errors.present(texts, "The header has not come").array();
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
                    && Arrays.equals(header, FIXED, FIXED + length, texts(), 0, agreementLength);
        }

        /** Returns what the peer has called, in words. */
        String description() {
            int length = texts().length - agreementLength;
            return new String(texts(), agreementLength, length, StandardCharsets.UTF_8);
        }

        /** Sends and receives as much as goes without waiting. Returns whether anything moved. */
        boolean advance(boolean mayReceivePayload) throws IOException {
            boolean moved = false;
            if (!isSent()) {
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

        /** Throws if a payload has another size than this rank expects. */
        void checkSize(int peer, int rank) {
            long size = fixed.getLong(8);
            if (size != expected) {
                throw new CollectiveException(
                        "rank %s sends %s bytes to rank %s, which expects %s, in %s"
                                .formatted(peer, size, rank, expected, description()));
            }
        }

        private long read(ByteBuffer[] buffers) throws IOException {
            long count = channel.read(buffers);
            if (count < 0) {
                throw new EOFException(
                        "closed by the other side: see whether it failed, or had fewer batches");
            }
            return count;
        }
    }
}
