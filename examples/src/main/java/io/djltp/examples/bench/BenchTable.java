package io.djltp.examples.bench;

import com.google.gson.annotations.SerializedName;

import org.jspecify.annotations.Nullable;

import java.io.PrintStream;
import java.util.List;
import java.util.Locale;
import java.util.Objects;

/** Prints what was measured. */
final class BenchTable {
    private BenchTable() {}

    /**
     * A line of the table, as {@code --json} writes it: what one side needed.
     *
     * @param name what was measured
     * @param side this library, a peer or the floor
     * @param shape the sizes
     * @param optimizer the optimizer, or between ranks the operation
     * @param loss the loss of a head, or null of anything else
     * @param precision that of the products
     * @param ranks the ranks and the threads of each
     * @param seconds the median
     * @param spread the distance between the quartiles, divided by the median; null of the floor
     * @param bytes the peak of the resident memory; null of the floor
     * @param ofOurs the time as a multiple of the first of this library's
     */
    record Row(
            String name,
            String side,
            String shape,
            String optimizer,
            @Nullable String loss,
            String precision,
            String ranks,
            @SerializedName("s") double seconds,
            @Nullable Double spread,
            @SerializedName("rss_bytes") @Nullable Long bytes,
            @SerializedName("of_ours") double ofOurs) {}

    /**
     * Prints rows.
     *
     * @param rows the rows
     * @param remarks lines below the table
     */
    static void print(List<Row> rows, List<String> remarks, PrintStream out) {
        out.printf(
                "%n%-24s %18s %-14s %-10s %-9s %7s %12s %7s %9s %8s%n",
                "side",
                "shape",
                "optimizer",
                "loss",
                "precision",
                "ranks",
                "time",
                "spread",
                "of ours",
                "peak MB");
        for (Row row : rows) {
            out.printf(
                    Locale.ROOT,
                    "%-24s %18s %-14s %-10s %-9s %7s %12s %7s %9.2f %8s%n",
                    row.side,
                    row.shape,
                    row.optimizer,
                    row.loss == null ? "-" : row.loss,
                    row.precision,
                    row.ranks,
                    row.seconds < 0.01
                            ? format("%.1f us", row.seconds * 1e6)
                            : format("%.4f s", row.seconds),
                    row.spread == null ? "-" : format("%.1f%%", 100 * row.spread),
                    row.ofOurs,
                    row.bytes == null ? "-" : format("%.0f", row.bytes / 1e6));
        }
        out.println();
        remarks.forEach(out::println);
        if (rows.stream().anyMatch(row -> isDisturbed(row, rows))) {
            out.println(
                    "The machine was busy: a spread is above 20%, or a time is below the floor; try"
                            + " OMP_WAIT_POLICY=passive");
        }
        out.println(
                "ranks x threads of each; times are medians; spread = (third - first quartile) /"
                        + " median; of ours = times the");
        out.println(
                "first line of this library; peak MB = resident memory of the process, all of it");
    }

    /** Returns whether a time varies much, or is one that the processor cannot have needed. */
    static boolean isDisturbed(Row row, List<Row> rows) {
        return row.spread != null
                && (row.spread > 0.2
                        || rows.stream()
                                .filter(each -> each.spread == null) // the floor
                                .filter(each -> each.shape.equals(row.shape))
                                .filter(each -> each.optimizer.equals(row.optimizer))
                                .filter(each -> each.precision.equals(row.precision))
                                .filter(each -> Objects.equals(each.loss, row.loss))
                                .anyMatch(each -> row.seconds < each.seconds));
    }

    private static String format(String pattern, double value) {
        return String.format(Locale.ROOT, pattern, value);
    }
}
