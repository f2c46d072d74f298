package io.djltp.internal.job;

import io.djltp.internal.Errors;
import io.djltp.job.Job;

import org.jspecify.annotations.Nullable;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.StringJoiner;

/**
 * What a process says of itself by name, such as its settings, to be compared with what the others
 * say: each sends its own with {@link Job#exchange}.
 */
public final class AgreedSettings {

    private static final String MISSING = "not there";

    private final Map<String, String> values;

    /**
     * Creates facts.
     *
     * @param values the values by name, in an order that is the same on all processes; white space
     *     in them counts as one blank
     */
    public AgreedSettings(Map<String, String> values) {
        this.values = new LinkedHashMap<>();
        values.forEach((name, value) -> this.values.put(line(name), line(value)));
    }

    private static String line(String text) {
        return text.replaceAll("\\s+", " ");
    }

    /**
     * Reads what {@link #write} wrote.
     *
     * @param text the text, which may have been cut off at its end
     * @return the facts
     */
    public static AgreedSettings read(String text) {
        Map<String, String> values = new LinkedHashMap<>();
        text.lines()
                .map(line -> line.split("\t", 2))
                .forEach(parts -> values.put(parts[0], parts.length == 2 ? parts[1] : ""));
        return new AgreedSettings(values);
    }

    /**
     * Compares what all processes of a job say. All call it.
     *
     * @param job the job, or {@code null} if this process is alone
     * @param what a name for the exchange
     * @param values what this process says, as {@link #AgreedSettings} takes it
     * @param remedy what is to be done if they differ
     * @throws IllegalArgumentException on all processes, if two of them differ
     */
    public static void check(
            @Nullable Job job, String what, Map<String, String> values, String remedy) {
        if (job != null) {
            byte[] mine = new AgreedSettings(values).write().getBytes(StandardCharsets.UTF_8);
            byte[][] all = job.exchange(what, mine);
            String[] texts = new String[all.length];
            Arrays.setAll(texts, i -> new String(all[i], StandardCharsets.UTF_8));
            String difference = difference(job, texts);
            Errors.check(difference == null, "%s: %s", difference, remedy);
        }
    }

    /**
     * Says which process says something else than process 0.
     *
     * @param job the job
     * @param texts what {@link #write} wrote on each process, empty on one that says nothing
     * @return the first difference, or {@code null} if there is none
     */
    public static @Nullable String difference(Job job, String... texts) {
        AgreedSettings first = read(texts[0]);
        String difference = null;
        for (int i = 1; i < texts.length && difference == null; i++) {
            if (!texts[i].isEmpty()) {
                difference =
                        first.difference(
                                read(texts[i]), "" + job.getMember(0), "" + job.getMember(i));
            }
        }
        return difference;
    }

    /**
     * Writes the facts as text.
     *
     * @return a line for each
     */
    public String write() {
        StringJoiner text = new StringJoiner("\n");
        values.forEach((name, value) -> text.add(name + "\t" + value));
        return text.toString();
    }

    /**
     * Says what another process says otherwise.
     *
     * @param other what it says
     * @param self what to call the process of these facts
     * @param another what to call the other one
     * @return the first difference, such as "the rate is 1 on process 0 and 2 on process 1", or
     *     {@code null} if there is none
     */
    public @Nullable String difference(AgreedSettings other, String self, String another) {
        Map<String, String> names = new LinkedHashMap<>(values);
        other.values.forEach(names::putIfAbsent);
        for (String name : names.keySet()) {
            String here = values.getOrDefault(name, MISSING);
            String there = other.values.getOrDefault(name, MISSING);
            if (!here.equals(there)) {
                return "%s is %s on %s and %s on %s".formatted(name, here, self, there, another);
            }
        }
        return write().equals(other.write()) ? null : "they come in another order";
    }
}
