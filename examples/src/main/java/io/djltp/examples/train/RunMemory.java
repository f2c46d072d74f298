package io.djltp.examples.train;

import ai.djl.ndarray.types.Shape;

import io.djltp.examples.BadInputException;
import io.djltp.examples.HeadKind;
import io.djltp.nn.MemoryEstimate;
import io.djltp.optimizer.OptimizerSettings;
import io.djltp.report.SystemMemory;

import java.io.PrintStream;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.StringJoiner;

/**
 * How much memory a training run will need on this machine, from the sizes of what it holds at its
 * fullest moment.
 */
final class RunMemory {
    private static final double GIB = 1L << 30;

    private final Map<String, Long> parts = new LinkedHashMap<>();

    /**
     * Estimates a run.
     *
     * @param options the options
     * @param classes the number of classes
     * @param tableRows the rows of the embedding table
     * @param pairs the number of words and lemmas in memory
     */
    RunMemory(TrainOptions options, long classes, long tableRows, long pairs) {
        OptimizerSettings optimizer = OptimizerSettings.of(options.optimizer.create(1f));
        int ranks = options.ranks();
        int cuts = ranks / options.replicas();
        for (int rank = 0; rank < ranks; rank++) {
            MemoryEstimate own = new MemoryEstimate(optimizer, rank % cuts, cuts);
            own.addTable(new Shape(tableRows, options.dim));
            Shape head = new Shape(classes, options.dim + 1); // with its bias
            if (options.head == HeadKind.FULL) {
                own.addWholeLogits(head, options.batch * (long) cuts / ranks);
            } else {
                own.addHead(head, options.batch);
            }
            parts.merge("weights", own.getWeights(), Long::sum);
            parts.merge("gradients", own.getGradients(), Long::sum);
            parts.merge("optimizer state", own.getState(), Long::sum);
            parts.merge("logits", own.getLogits(), Long::sum);
        }
        // the vectors of the n-grams of all words, and their gradients
        parts.put("activations", 8L * options.batch * TrainCommand.N_GRAMS * options.dim);
        parts.put("words and the virtual machine", 700_000_000 + 60 * pairs);
    }

    /** Prints a table of what takes memory. Refuses the run if this machine has not enough. */
    void check(PrintStream out) {
        long total = parts.values().stream().mapToLong(Long::longValue).sum();
        long available = SystemMemory.available().orElse(Long.MAX_VALUE);
        if (available < total) {
            StringJoiner all = new StringJoiner(", ");
            parts.forEach(
                    (name, bytes) ->
                            all.add(String.format(Locale.ROOT, "%s %.1f", name, bytes / GIB)));
            throw new BadInputException(
                    "This run needs about %.1f GiB of memory (%s), and %.1f GiB are available: use"
                            + " fewer --languages, a smaller --dim or --batch, or --optimizer sgd",
                    total / GIB, all, available / GIB);
        }
        out.println("Memory that this will take, estimated:");
        parts.put("together", total);
        parts.forEach(
                (name, bytes) -> out.printf(Locale.ROOT, "  %-29s %6.2f GiB%n", name, bytes / GIB));
    }
}
