package io.djltp.training;

import io.djltp.job.Facts;
import io.djltp.job.Job;
import io.djltp.job.JobFailedException;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.Map;
import java.util.function.Supplier;

/**
 * What a process says of itself to the others, to be compared: facts by name, or why it refuses to
 * go on.
 */
final class Comparison {

    private static final char REFUSED = '!';
    private static final char FACTS = '=';
    private static final int NOTHING_SAID = 1; // bytes: the mark, and no facts behind it

    /** What is to be done if networks or settings differ. */
    static final String SAME = ": build the same network, with the same settings, on all processes";

    private final RuntimeException refusal;
    private final byte[] said;

    private Comparison(RuntimeException refusal, String said) {
        this.refusal = refusal;
        this.said = said.getBytes(StandardCharsets.UTF_8);
    }

    /**
     * Does this process's part, and notes what comes of it.
     *
     * @param part what may refuse to go on
     * @param facts of the part that was done, in an order that is the same on all processes
     */
    static Comparison of(Runnable part, Supplier<Map<String, String>> facts) {
        try {
            part.run();
            return new Comparison(null, FACTS + new Facts(facts.get()).write());
        } catch (RuntimeException e) {
            return new Comparison(e, REFUSED + e.toString());
        }
    }

    /**
     * Returns a number that is the same where the same was said, and hardly elsewhere; 0 if there
     * was nothing to say.
     */
    long digest() {
        if (said.length == NOTHING_SAID) {
            return 0;
        }
        try {
            return ByteBuffer.wrap(MessageDigest.getInstance("SHA-256").digest(said)).getLong();
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException("Every Java has SHA-256", e);
        }
    }

    /** Throws what this process refused to go on with, if it did. */
    void throwRefusal() {
        if (refusal != null) {
            throw refusal;
        }
    }

    /**
     * Compares what all processes say. All call it.
     *
     * @param job the job
     * @param what a name for it, of what can be compared
     * @param remedy what is to be done if it differs
     * @return the first refusal of another process, or else the first difference; {@code null} if
     *     there is none in the first {@link Job#getExchangeLimit} bytes
     */
    JobFailedException difference(Job job, String what, String remedy) {
        int limit = job.getExchangeLimit();
        byte[] mine = said.length > limit ? Arrays.copyOf(said, limit) : said;
        byte[][] all = job.exchange(what, mine);
        String[] texts = new String[all.length];
        for (int i = 0; i < all.length; i++) {
            texts[i] = new String(all[i], StandardCharsets.UTF_8);
        }
        for (int i = 0; i < texts.length; i++) {
            if (texts[i].charAt(0) == REFUSED && refusal == null) {
                String text = job.getMember(i) + " failed: " + texts[i].substring(1);
                return new JobFailedException(text, i, -1, null);
            }
        }
        String first = job.getMember(0).toString();
        for (int i = 1; i < texts.length; i++) {
            if (all[i].length == NOTHING_SAID) {
                continue;
            }
            String another = job.getMember(i).toString();
            String text = facts(texts[0]).difference(facts(texts[i]), first, another);
            if (text != null) {
                return new JobFailedException(
                        what + " differ between the processes: " + text + remedy, -1, -1, null);
            }
        }
        return null;
    }

    private static Facts facts(String said) {
        return Facts.read(said.substring(1));
    }
}
