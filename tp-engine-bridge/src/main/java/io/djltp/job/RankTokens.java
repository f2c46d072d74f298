package io.djltp.job;

import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;

/**
 * By what the connections between the ranks of a mesh are known, at the process that accepts them.
 *
 * <p>The process draws a ticket and sends it to the others over TLS. From it follow 64 random bytes
 * for each two ranks: by the first 16 the connection is looked up, the next 32 it must show, and
 * the last 16 are the answer. Each opens one connection, once.
 */
final class RankTokens {

    /** How many bytes the side that connects shows. */
    static final int SHOWN = 48;

    /** How many bytes it gets for it. */
    static final int ANSWER = 16;

    private static final int NAME = 16;

    private final byte[] ticket = new byte[32];
    private final Map<ByteBuffer, Pair> open = new HashMap<>();
    private final Map<Pair, SocketChannel> arrived = new HashMap<>();
    private int expected;
    private boolean closed;

    /** Two ranks: the higher one connects to the lower one. */
    record Pair(int from, int to) {

        /** Returns the bytes by which the two know each other. */
        byte[] token(byte[] ticket) {
            byte[] ranks = ByteBuffer.allocate(8).putInt(from).putInt(to).array();
            return JobTls.hmac("HmacSHA512", ticket, ranks);
        }
    }

    RankTokens() {
        new SecureRandom().nextBytes(ticket);
    }

    byte[] ticket() {
        return ticket.clone();
    }

    /** Lets all higher ranks connect to those of this process. */
    synchronized void expect(Job job) {
        for (int to = job.getFirstRank(); to < job.getFirstRank() + job.getLocalRanks(); to++) {
            for (int from = to + 1; from < job.getRanks(); from++) {
                Pair pair = new Pair(from, to);
                open.put(ByteBuffer.wrap(pair.token(ticket), 0, NAME), pair);
                expected++;
            }
        }
    }

    /** Returns whose connection shows these bytes, for the first time, or {@code null}. */
    synchronized Pair admit(byte[] shown) {
        ByteBuffer name = ByteBuffer.wrap(shown, 0, NAME);
        Pair pair = open.get(name);
        // takes the same time wherever they differ
        if (pair == null
                || !MessageDigest.isEqual(Arrays.copyOf(pair.token(ticket), SHOWN), shown)) {
            return null;
        }
        open.remove(name);
        return pair;
    }

    /** Returns what a connection that was let in gets. */
    byte[] answer(Pair pair) {
        return Arrays.copyOfRange(pair.token(ticket), SHOWN, SHOWN + ANSWER);
    }

    synchronized void arrive(Pair pair, SocketChannel channel) {
        arrived.put(pair, channel);
        if (closed) {
            close();
        }
    }

    synchronized boolean isComplete() {
        return arrived.size() == expected;
    }

    /** Says which connection is missing. */
    synchronized String describeMissing() {
        Pair first = open.values().iterator().next();
        return "rank %d has not connected to rank %d".formatted(first.from, first.to);
    }

    /** Gives away all that have come: {@code [i][r]} connects local rank i with rank r. */
    synchronized void take(Job job, SocketChannel[][] channels) {
        arrived.forEach(
                (pair, channel) -> channels[pair.to - job.getFirstRank()][pair.from] = channel);
        arrived.clear();
    }

    /** Lets nobody in any more, and closes what nobody has taken. */
    synchronized void close() {
        closed = true;
        open.clear();
        arrived.values().forEach(Dialer::closeQuietly);
        arrived.clear();
    }
}
