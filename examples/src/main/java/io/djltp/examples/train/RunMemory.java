package io.djltp.examples.train;

import ai.djl.ndarray.types.Shape;

import io.djltp.examples.BadInputException;
import io.djltp.examples.HeadKind;
import io.djltp.internal.optimizer.OptimizerSettings;
import io.djltp.internal.optimizer.StateKind;
import io.djltp.internal.report.SystemMemory;
import io.djltp.sharding.ShardingStrategy;

import java.io.PrintStream;
import java.util.Arrays;
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

    private final TrainOptions options;
    private final Map<String, Long> parts = new LinkedHashMap<>();

    /**
     * Estimates a run.
     *
     * @param options the options
     * @param classes the number of classes
     * @param tableRows the rows of the embedding table
     * @param places the rows of the table that a row of the data has
     * @param data the bytes of the data that are in memory
     */
    RunMemory(TrainOptions options, long classes, long tableRows, long places, long data) {
        this.options = options;
        OptimizerSettings optimizer = OptimizerSettings.of(options.optimizer.create(1f));
        int ranks = options.ranks();
        int cuts = ranks / options.replicas();
        long[] sums = new long[4];
        Shape table = new Shape(tableRows, options.dim);
        Shape head = new Shape(classes, options.dim + 1); // with its bias
        boolean full = options.headKind() == HeadKind.FULL;
        long rows = full ? options.batch * (long) cuts / ranks : options.batch;
        for (int rank = 0; rank < ranks; rank++) {
            ShardingStrategy strategy = ShardingStrategy.rowwise();
            Shape own = strategy.shardShape(head, rank % cuts, cuts);
            long[] bytes = bytes(optimizer, table, own, full, rows);
            Arrays.setAll(sums, k -> sums[k] + bytes[k]);
        }
        parts.put("weights", sums[0]);
        parts.put("gradients", sums[1]);
        parts.put("optimizer state", sums[2]);
        parts.put("logits", sums[3]);
        // the vectors of the n-grams of all words, and their gradients
        parts.put("activations", 8L * options.batch * places * options.dim);
        parts.put("data and the virtual machine", 450_000_000 + data);
    }

    /**
     * Returns the bytes of a rank's weights, gradients, optimizer state and logits.
     *
     * @param optimizer the optimizer
     * @param table the table of embeddings, which each rank has
     * @param head the rank's part of the head
     * @param full whether the head's logits and gradient are whole
     * @param rows the rows of the rank's logits
     */
    static long[] bytes(
            OptimizerSettings optimizer, Shape table, Shape head, boolean full, long rows) {
        long weights = bytes(table) + bytes(head);
        long gradients = (optimizer.isRowSparse() ? 0 : bytes(table)) + (full ? bytes(head) : 0);
        long state =
                StateKind.of(optimizer).stream()
                        .mapToLong(kind -> kind.bytes(table) + kind.bytes(head))
                        .sum();
        long logits = bytes(new Shape(rows, head.get(0)));
        long kept = (64L << 20) + bytes(head) * 3 / 4; // what a fused head may take
        return new long[] {weights, gradients, state, full ? 2 * logits : Math.min(logits, kept)};
    }

    private static long bytes(Shape shape) {
        return shape.size() * Float.BYTES;
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
            String fewer = options.own.data == null ? "fewer --languages, " : "";
            throw new BadInputException(
                    "This run needs about %.1f GiB of memory (%s), and %.1f GiB are available: use"
                            + " %sa smaller --dim or --batch, or --optimizer sgd",
                    total / GIB, all, available / GIB, fewer);
        }
        out.println("Memory that this will take, estimated:");
        parts.put("together", total);
        parts.forEach(
                (name, bytes) -> out.printf(Locale.ROOT, "  %-29s %6.2f GiB%n", name, bytes / GIB));
    }
}
