package io.djltp.examples.doctor;

import com.google.gson.annotations.SerializedName;

import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/** What {@code tp doctor} has found, as {@code --json} writes it. */
final class DoctorReport {

    Map<String, String> facts;
    int ranks;
    String chosen;
    List<BackendResult> backends = new ArrayList<>();

    /** What was found about one backend. */
    static final class BackendResult {

        String name;
        boolean usable;

        @SerializedName("why_not")
        String whyNot;

        @SerializedName("all_reduce")
        List<AllReduceRun.Line> lines;

        /** The time in which as many threads as ranks copy the largest message. */
        @SerializedName("copy_seconds")
        double copySeconds;

        boolean isRight() {
            return lines == null || lines.stream().allMatch(line -> line.wrong == 0);
        }

        void print(PrintStream out, int ranks) {
            out.printf("%nall-reduce, float32, sum, in place, %d ranks, backend %s%n", ranks, name);
            out.printf(
                    "%12s %12s %12s %12s %8s%n",
                    "size (B)", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "#wrong");
            for (AllReduceRun.Line line : lines) {
                out.printf(
                        Locale.ROOT,
                        "%12d %12.1f %12.3f %12.3f %8d%n",
                        line.bytes,
                        line.microseconds,
                        line.algorithmGbs,
                        line.busGbs,
                        line.wrong);
            }
            AllReduceRun.Line last = lines.get(lines.size() - 1);
            out.printf(
                    Locale.ROOT,
                    "copying %d MiB in each rank's thread takes %.1f ms: the all-reduce runs at"
                            + " %.2f of that%n",
                    last.bytes >> 20,
                    copySeconds * 1e3,
                    copySeconds * 1e6 / last.microseconds);
        }
    }
}
