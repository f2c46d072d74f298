package io.djltp.examples.bench;

import java.io.PrintStream;
import java.util.List;
import java.util.Locale;

/** Prints all sides of a measurement, one under another. */
final class PeerTable {

    private static final double MICRO = 1e-6;

    private PeerTable() {}

    static void print(List<PeerRow> rows, PrintStream out) {
        if (rows.isEmpty()) {
            return;
        }
        out.printf(
                "%n%-24s %16s %-10s %-9s %7s %12s %7s %9s %8s%n",
                "side",
                "shape",
                "optimizer",
                "precision",
                "ranks",
                "time",
                "spread",
                "of ours",
                "peak MB");
        for (PeerRow row : rows) {
            out.printf(
                    Locale.ROOT,
                    "%-24s %16s %-10s %-9s %7s %12s %6.1f%% %9.2f %8.0f%n",
                    row.side,
                    row.shape,
                    row.optimizer,
                    row.precision,
                    row.ranks,
                    time(row.seconds),
                    100 * row.spread,
                    row.ofOurs,
                    row.bytes / 1e6);
        }
        out.println();
    }

    private static String time(double seconds) {
        return seconds < 1e4 * MICRO
                ? String.format(Locale.ROOT, "%.1f us", seconds / MICRO)
                : String.format(Locale.ROOT, "%.4f s", seconds);
    }
}
