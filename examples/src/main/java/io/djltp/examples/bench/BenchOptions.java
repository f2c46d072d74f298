package io.djltp.examples.bench;

import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.train.DeviceOptions;

import picocli.CommandLine.Option;

import java.io.PrintStream;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;

/** The options of everything that is measured. */
final class BenchOptions {

    private static final int ENOUGH = 7; // repeats for a median to mean something

    @Option(
            names = "--repeats",
            defaultValue = "7",
            description = "Turns of each side that are counted (${DEFAULT-VALUE}).")
    int repeats;

    @Option(
            names = "--warmup",
            defaultValue = "2",
            description = "Steps of each side before that (${DEFAULT-VALUE}).")
    int warmup;

    @Option(
            names = "--warmup-seconds",
            defaultValue = "3",
            description = "At least so many seconds of each side before that (${DEFAULT-VALUE}).")
    double warmupSeconds;

    @Option(
            names = "--threads-per-rank",
            description = "Threads of a rank (processors / ranks, and at least 1).")
    private Integer threadsPerRank;

    @Option(
            names = "--timeout",
            defaultValue = "600",
            description =
                    "Seconds after which a process that does not answer counts as hung"
                            + " (${DEFAULT-VALUE}).")
    private int timeoutSeconds;

    @Option(
            names = "--json",
            description = "File for the figures: a list with an object for each line.")
    Path json;

    /** Checks everything that can be checked before anything is measured. */
    void check(List<Integer> ranks, PrintStream out) {
        positive("--repeats", repeats);
        positive("--timeout", timeoutSeconds);
        DeviceOptions.positive("--threads-per-rank", threadsPerRank);
        if (warmup < 0) {
            throw new BadInputException("--warmup must be 0 or more, not " + warmup);
        }
        if (!(warmupSeconds >= 0)) {
            throw new BadInputException("--warmup-seconds must be 0 or more, not " + warmupSeconds);
        }
        ranks.forEach(each -> positive("--ranks", each));
        JsonFile.check(json);
        if (repeats < ENOUGH) {
            out.printf(
                    "The median of %d repeats says little: use --repeats %d or more.%n",
                    repeats, ENOUGH);
        }
    }

    /** Refuses numbers that are not greater than 0. */
    static void positive(String option, int... values) {
        Arrays.stream(values).forEach(value -> DeviceOptions.positive(option, value));
    }

    int threads(int ranks) {
        return threadsPerRank != null
                ? threadsPerRank
                : Math.max(1, Runtime.getRuntime().availableProcessors() / ranks);
    }

    Duration timeout() {
        return Duration.ofSeconds(timeoutSeconds);
    }
}
