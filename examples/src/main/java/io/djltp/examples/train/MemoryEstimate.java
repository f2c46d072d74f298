package io.djltp.examples.train;

import io.djltp.examples.BadInputException;
import io.djltp.examples.HeadKind;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.SystemMemory;

import java.io.PrintStream;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;

/**
 * How much memory a training run will need on this machine, from the sizes of what it holds at its
 * fullest moment.
 */
final class MemoryEstimate {

    private static final double GIB = 1L << 30;
    private static final long FUSED_BYTES = 64L << 20; // of logits, and 3/4 of the weight's

    private final Map<String, Long> parts = new LinkedHashMap<>();

    /**
     * Estimates a run.
     *
     * @param options the options
     * @param classes the number of classes
     * @param tableRows the rows of the embedding table
     * @param pairs the number of words and lemmas in memory
     */
    MemoryEstimate(TrainOptions options, long classes, long tableRows, long pairs) {
        long copies = options.ranks.replicas();
        long head = 4 * classes * (options.dim + 1) * copies;
        long table = 4 * tableRows * options.dim * options.ranks.count();
        boolean full = options.head == HeadKind.FULL;
        long logits = full ? 4 * classes * options.batch : 0;
        long gradients = table + (full ? head : 0);
        parts.put("weights", head + table);
        parts.put("gradients", gradients);
        parts.put("optimizer state", options.optimizer.getStateArrays() * (head + table));
        // DJL's optimizers clone the gradient, and Adam makes more arrays of its size
        long update = updateArrays(options.optimizer) * Math.max(full ? head : 0, table);
        // the logits and their softmax, which becomes their gradient, are each there once
        long kept =
                Math.min(
                        4 * classes * options.batch,
                        head * 3 / 4 + FUSED_BYTES * options.ranks.count());
        long chunks = full ? 0 : kept;
        parts.put("logits and update", 2 * logits + chunks + update);
        // the vectors of the n-grams of all words, and their gradients
        parts.put("activations", 8L * options.batch * TrainCommand.N_GRAMS * options.dim);
        parts.put("words and the virtual machine", 700_000_000 + 60 * pairs);
    }

    private static long updateArrays(OptimizerName optimizer) {
        return optimizer.getStateArrays() > 1 ? 4 : 1;
    }

    long total() {
        return parts.values().stream().mapToLong(Long::longValue).sum();
    }

    /** Refuses the run if this machine has not enough memory for it. */
    void check() {
        SystemMemory.available()
                .ifPresent(
                        available -> {
                            if (available < total()) {
                                throw new BadInputException(
                                        String.format(
                                                Locale.ROOT,
                                                "This run needs about %.1f GiB of memory (%s), and"
                                                        + " %.1f GiB are available: use fewer"
                                                        + " --languages, a smaller --dim or --batch,"
                                                        + " or --optimizer sgd",
                                                total() / GIB,
                                                describe(),
                                                available / GIB));
                            }
                        });
    }

    private String describe() {
        StringBuilder text = new StringBuilder();
        parts.forEach(
                (name, bytes) ->
                        text.append(text.length() == 0 ? "" : ", ")
                                .append(String.format(Locale.ROOT, "%s %.1f", name, bytes / GIB)));
        return text.toString();
    }

    /** Prints a table of what takes memory. */
    void print(PrintStream out) {
        out.println("Memory that this will take, estimated:");
        parts.forEach((name, bytes) -> printRow(out, name, bytes));
        printRow(out, "together", total());
    }

    private static void printRow(PrintStream out, String name, long bytes) {
        out.printf(Locale.ROOT, "  %-29s %6.2f GiB%n", name, bytes / GIB);
    }
}
