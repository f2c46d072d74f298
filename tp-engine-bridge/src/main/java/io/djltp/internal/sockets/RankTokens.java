package io.djltp.internal.sockets;

import io.djltp.job.Job;

import java.nio.ByteBuffer;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;

import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * By what the connections of one mesh are known, at the process that accepts them.
 *
 * <p>The process draws a ticket and sends it to the others over TLS. From it follow 64 random bytes
 * for each two ranks: by the first 16 the connection is looked up, the next 32 it must show, and
 * the last 16 are the answer. Each opens one connection, once.
 */
final class RankTokens {

    /** How many bytes of a ticket there are. */
    static final int TICKET = 32;

    /** How many bytes the side that connects shows. */
    static final int SHOWN = 48;

    /** How many bytes it gets for it. */
    static final int ANSWER = 16;

    private static final int NAME = 16;

    private final byte[] ticket = new byte[TICKET];
    private final Map<ByteBuffer, Pair> open = new HashMap<>();

    /** Two ranks: the higher one connects to the lower one. */
    record Pair(int from, int to) {

        /** Returns the bytes by which the two know each other. */
        byte[] token(byte[] ticket) {
            try {
                Mac mac = Mac.getInstance("HmacSHA512");
                mac.init(new SecretKeySpec(ticket, mac.getAlgorithm()));
                return mac.doFinal(ByteBuffer.allocate(8).putInt(from).putInt(to).array());
            } catch (GeneralSecurityException e) {
                throw new IllegalStateException("Java without HMAC of SHA-512", e);
            }
        }
    }

    /** Draws a ticket, by which all higher ranks may connect to those of this process. */
    RankTokens(Job job) {
        new SecureRandom().nextBytes(ticket);
        for (int to = job.getFirstRank(); to < job.getFirstRank() + job.getLocalRanks(); to++) {
            for (int from = to + 1; from < job.getRanks(); from++) {
                Pair pair = new Pair(from, to);
                open.put(ByteBuffer.wrap(pair.token(ticket), 0, NAME), pair);
            }
        }
    }

    byte[] ticket() {
        return ticket.clone();
    }

    /** Returns how many connections are still to come. */
    synchronized int missing() {
        return open.size();
    }

    /** Says which connection is still to come. */
    synchronized String describeMissing() {
        return open.values().stream()
                .findFirst()
                .map(pair -> "rank %d has not connected to rank %d".formatted(pair.from, pair.to))
                .orElse("a connection that had come was lost");
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
        return open.remove(name);
    }

    /** Returns what a connection that was let in gets. */
    byte[] answer(Pair pair) {
        return Arrays.copyOfRange(pair.token(ticket), SHOWN, SHOWN + ANSWER);
    }
}
