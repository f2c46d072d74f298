package io.djltp.examples.bench;

import com.google.gson.annotations.SerializedName;

import io.djltp.torch.Precision;

import java.io.PrintStream;
import java.util.List;
import java.util.Locale;

/** Prints what was measured. */
final class BenchTable {

    private static final String NONE = "-";
    private static final double MICRO = 1e-6;

    private final PrintStream out;

    BenchTable(PrintStream out) {
        this.out = out;
    }

    /**
     * Prints rows of training steps.
     *
     * @param rows the rows
     * @param remarks lines below the table
     */
    void print(List<BenchRow> rows, List<String> remarks) {
        out.printf(
                "%nname              shape optimizer precision   ranks    ours s  spread of 1 rank"
                        + "  ns/unit   stock s stock/us floor s floor/us  ours MB  weights+ stock"
                        + " MB%n");
        rows.forEach(this::print);
        out.println();
        remarks.forEach(out::println);
        out.println(
                "ranks x threads of each; times are medians; spread = (third - first quartile) /"
                        + " median of ours; unit = class, or");
        out.println(
                "hidden unit; MB = peak resident memory of the process, weights+ = the part of it"
                        + " that weights and optimizer state are");
    }

    private void print(BenchRow row) {
        boolean stock = row.stockSeconds != null;
        out.printf(
                Locale.ROOT,
                "%-6s %16s %-9s %-9s %7s %9.4f %6.1f%% %9s %8.1f %9s %8s %7.4f %8.2f %8.0f %9.0f"
                        + " %8s%n",
                row.name,
                row.shape,
                row.optimizer,
                row.precision,
                row.ranks + " x " + row.threads,
                row.oursSeconds,
                100 * row.spread,
                Double.isNaN(row.ofOneRank) ? NONE : format("%.3f", row.ofOneRank),
                row.oursSeconds * 1e9 / row.workload.units(),
                stock ? format("%.4f", row.stockSeconds) : NONE,
                stock ? format("%.2f", row.stockSeconds / row.oursSeconds) : NONE,
                row.floorSeconds,
                row.floorSeconds / row.oursSeconds,
                row.oursBytes / 1e6,
                row.weightsAndState / 1e6,
                stock && row.stockBytes != null ? format("%.0f", row.stockBytes / 1e6) : NONE);
    }

    /**
     * Prints rows of collective operations.
     *
     * @param rows the rows
     */
    void printCollectives(List<BenchRow> rows) {
        out.printf(
                "%noperation            bytes  ranks    ours us  spread     GB/s    copy us"
                        + "  copy/us%n");
        for (BenchRow row : rows) {
            out.printf(
                    Locale.ROOT,
                    "%-15s %10s %6d %10.1f %6.1f%% %8.2f %10.1f %8.2f%n",
                    row.name,
                    row.shape,
                    row.ranks,
                    row.oursSeconds * 1e6,
                    100 * row.spread,
                    Long.parseLong(row.shape) / row.oursSeconds / 1e9,
                    row.floorSeconds * 1e6,
                    row.floorSeconds / row.oursSeconds);
        }
        out.println();
        out.println(
                "bytes of the whole array of a rank; copy = each rank's thread reads and writes as"
                        + " many bytes; times are medians");
    }

    /** Prints all sides of a measurement, one under another, if there are peers. */
    void printPeers(List<PeerRow> rows) {
        if (rows.isEmpty()) {
            return;
        }
        out.printf(
                "%nside                                shape optimizer  precision   ranks"
                        + "         time  spread   of ours  peak MB%n");
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

    private static String format(String pattern, double value) {
        return String.format(Locale.ROOT, pattern, value);
    }

    /**
     * One line of the table, as {@code --json} writes it. What was not measured is missing there.
     * Times are medians in seconds, memory is the peak of the process that measured one side.
     */
    static final class BenchRow {

        String name;
        String shape;
        int ranks;
        String optimizer;
        String precision;

        @SerializedName("ours_s")
        double oursSeconds;

        @SerializedName("stock_s")
        Double stockSeconds;

        @SerializedName("floor_s")
        double floorSeconds;

        @SerializedName("ours_rss_bytes")
        long oursBytes;

        @SerializedName("stock_rss_bytes")
        Long stockBytes;

        /** The distance between the quartiles of our times, divided by their median. */
        double spread;

        /** All sides, if there are others than this library and stock DJL. */
        List<PeerRow> peers;

        transient Workload workload;
        transient int threads;
        transient double ofOneRank; // our time as a multiple of that on one rank, or NaN
        transient double weightsAndState; // in bytes
    }

    /**
     * What one side needed, this library or a peer: all sides of a measurement have the same
     * figures.
     */
    static final class PeerRow {

        String side;
        String shape;
        String optimizer;
        String precision = Precision.FLOAT32.toString(); // of the peers, and between ranks
        String ranks;

        /** The median. */
        @SerializedName("s")
        double seconds;

        /** The distance between the quartiles, divided by the median. */
        double spread;

        @SerializedName("rss_bytes")
        long bytes;

        /** The time as a multiple of this library's. */
        @SerializedName("of_ours")
        double ofOurs;

        static PeerRow of(Turns turns, int worker, int value, String side) {
            PeerRow row = new PeerRow();
            row.side = side;
            row.seconds = Samples.median(turns.values(worker, value));
            row.spread = Samples.spread(turns.values(worker, value));
            row.bytes = turns.process(worker).peakResident();
            return row;
        }
    }
}
