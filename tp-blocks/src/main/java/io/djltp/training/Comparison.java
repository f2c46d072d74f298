package io.djltp.training;

import io.djltp.job.Job;
import io.djltp.job.JobFailedException;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.StringJoiner;
import java.util.function.Supplier;

/**
 * What a process says of itself to the others, to be compared: facts by name, or why it refuses to
 * go on.
 */
final class Comparison {

    private static final char REFUSED = '!';
    private static final char FACTS = '=';
    private static final int MAX_ALL = 1 << 30; // of all processes together
    private static final String MISSING = "not there";
    private static final String REMEDY =
            ": build the same network, with the same settings, on all processes";

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
            StringJoiner text = new StringJoiner("\n", "" + FACTS, "");
            facts.get().forEach((name, value) -> text.add(line(name) + "\t" + line(value)));
            return new Comparison(null, text.toString());
        } catch (RuntimeException e) {
            return new Comparison(e, REFUSED + e.toString());
        }
    }

    private static String line(String text) {
        return text.replaceAll("\\s+", " ");
    }

    /** Returns a number that is the same where the same was said, and hardly elsewhere. */
    long digest() {
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
     * @return the first refusal of another process, or else the first difference; {@code null} if
     *     there is none in the first {@link Job#MAX_EXCHANGE} bytes
     */
    JobFailedException difference(Job job, String what) {
        int limit = Math.min(Job.MAX_EXCHANGE, MAX_ALL / job.getProcesses());
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
        for (int i = 1; i < texts.length; i++) {
            if (!texts[i].equals(texts[0])) {
                String text = difference(texts[0], texts[i], job, i);
                return new JobFailedException(
                        what + " differ between the processes: " + text, -1, -1, null);
            }
        }
        return null;
    }

    private static String difference(String first, String other, Job job, int process) {
        Map<String, String> a = parse(first);
        Map<String, String> b = parse(other);
        Map<String, String> names = new LinkedHashMap<>(a);
        b.forEach(names::putIfAbsent);
        for (String name : names.keySet()) {
            String here = a.getOrDefault(name, MISSING);
            String there = b.getOrDefault(name, MISSING);
            if (!here.equals(there)) {
                return "%s is %s on %s and %s on %s%s"
                        .formatted(
                                name,
                                here,
                                job.getMember(0),
                                there,
                                job.getMember(process),
                                REMEDY);
            }
        }
        return "they come in another order" + REMEDY;
    }

    private static Map<String, String> parse(String text) {
        Map<String, String> facts = new LinkedHashMap<>();
        for (String line : text.substring(1).split("\n")) {
            String[] parts = line.split("\t", 2);
            facts.put(parts[0], parts.length == 2 ? parts[1] : "");
        }
        return facts;
    }
}
