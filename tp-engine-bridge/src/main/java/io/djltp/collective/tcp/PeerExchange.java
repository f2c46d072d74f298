package io.djltp.collective.tcp;

import io.djltp.collective.CollectiveCall;
import io.djltp.collective.CollectiveException;
import io.djltp.collective.DifferentCalls;
import io.djltp.collective.GroupFailure;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.ArrayList;
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

    private final SocketChannel[] peers; // null for this rank
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
    PeerExchange(SocketChannel[] peers, int rank, GroupFailure failure) throws IOException {
        this.peers = peers;
        this.rank = rank;
        this.failure = failure;
        selector = Selector.open();
        for (int i = 0; i < peers.length; i++) {
            if (i != rank) {
                peers[i].configureBlocking(false);
                peers[i].register(selector, 0);
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
        String description = call.toString();
        byte[] header = PeerTransfer.header(call.getAgreement(), description);
        PeerTransfer[] transfers = new PeerTransfer[members.length];
        for (int i = 0; i < members.length; i++) {
            if (members[i] != rank) {
                transfers[i] =
                        new PeerTransfer(peers[members[i]], header, sent.of(i), received.of(i));
            }
        }
        new Run(members, transfers, header, description, timeout).complete();
    }

    /** Lets an exchange that waits look at the failure of the group. */
    void wakeUp() {
        selector.wakeup();
    }

    /** Closes the connections, so that the peers find out. */
    @Override
    public void close() {
        for (SocketChannel peer : peers) {
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
        private final PeerTransfer[] transfers;
        private final byte[] header;
        private final String description;
        private final Duration timeout;
        private final long begin = System.nanoTime();
        private long moved = begin;
        private boolean disagreement;

        Run(
                int[] members,
                PeerTransfer[] transfers,
                byte[] header,
                String description,
                Duration timeout) {
            this.members = members;
            this.transfers = transfers;
            this.header = header;
            this.description = description;
            this.timeout = timeout;
        }

        void complete() throws IOException {
            while (advance()) {
                failure.check(rank, peers.length);
                long now = System.nanoTime();
                if (disagreement && (now - begin > HEADER_NANOS || allHeadersHere())) {
                    throw new CollectiveException(describeDisagreement());
                }
                if (now - begin > timeout.toNanos()) {
                    throw new PeerSilentException(describeTimeout());
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
                }
            } catch (IOException e) {
                throw new PeerLostException(peer, description, e);
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
                SelectionKey key = peers[peer].keyFor(selector);
                if (key.interestOps() != interest) {
                    key.interestOps(interest);
                }
            }
        }

        private boolean allHeadersHere() {
            for (PeerTransfer transfer : transfers) {
                if (transfer != null && !transfer.hasHeader()) {
                    return false;
                }
            }
            return true;
        }

        private String describeDisagreement() {
            List<String> calls = new ArrayList<>();
            for (int i = 0; i < members.length; i++) {
                PeerTransfer transfer = transfers[i];
                String other =
                        transfer == null
                                ? description
                                : transfer.hasHeader()
                                        ? transfer.description()
                                        : DifferentCalls.NOT_YET;
                calls.add("rank " + members[i] + " " + other);
            }
            return DifferentCalls.describe(calls);
        }

        private String describeTimeout() {
            List<String> missing = new ArrayList<>();
            for (int i = 0; i < members.length; i++) {
                if (transfers[i] != null && !transfers[i].isDone()) {
                    missing.add("rank " + members[i]);
                }
            }
            return "time-out after "
                    + timeout.toMillis()
                    + " ms: rank "
                    + rank
                    + " waits in "
                    + description
                    + " for "
                    + String.join(", ", missing);
        }
    }
}
