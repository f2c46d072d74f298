package io.djltp.examples.bench;

import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.bench.WorkerProcess.PythonPeer;
import io.djltp.examples.train.DeviceOptions;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Option;

import java.io.PrintStream;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;

/** The options of everything that is measured. */
final class BenchOptions {
    private static final int ENOUGH = 7; // repeats for a median to mean something

    @Option(
            names = "--repeats",
            defaultValue = "7",
            description = "Turns of each side that are counted (${DEFAULT-VALUE}).")
    int repeats;

    @Option(
            names = "--warmup-seconds",
            defaultValue = "3",
            description =
                    "At least so many seconds, and two steps, of each side before that"
                            + " (${DEFAULT-VALUE}).")
    double warmupSeconds;

    @Option(
            names = {"--threads", "--threads-per-rank"},
            split = ",",
            description =
                    "Numbers of threads of a rank, such as 1,2,4, with a line for each (processors"
                            + " / ranks, and at least 1).")
    private @Nullable List<Integer> threads;

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
    @Nullable Path json;

    @Option(
            names = "--peers",
            split = ",",
            defaultValue = "djl",
            description =
                    "What takes turns with this library, any of ${COMPLETION-CANDIDATES}"
                            + " (${DEFAULT-VALUE}; of operations between ranks, none).")
    private List<Peer> peers;

    @Option(
            names = "--python",
            description =
                    "Python with PyTorch, for its peers (the first of python3 and /usr/bin/python3"
                            + " that has it).")
    private @Nullable String python;

    /** What this library is measured beside. */
    enum Peer {
        /** DJL's own layers, loss and trainer. */
        DJL,
        /** PyTorch, as {@code python3} has it. */
        PYTORCH,
        /** Every one that this machine has. */
        ALL,
        /** Nothing but the floor. */
        NONE
    }

    /** Checks everything that can be checked before anything is measured. */
    void check(List<Integer> ranks, PrintStream out) {
        positive("--repeats", repeats);
        positive("--timeout", timeoutSeconds);
        if (threads != null) {
            threads.forEach(each -> positive("--threads", each));
        }
        if (!(warmupSeconds >= 0)) {
            throw new BadInputException("--warmup-seconds must be 0 or more, not " + warmupSeconds);
        }
        ranks.forEach(each -> positive("--ranks", each));
        JsonFile.check("--json", json);
        if (repeats < ENOUGH) {
            out.printf(
                    "The median of %d repeats says little: use --repeats %d or more.%n",
                    repeats, ENOUGH);
        }
    }

    /** Refuses a number that is not greater than 0. */
    static void positive(String option, int value) {
        DeviceOptions.positive(option, value);
    }

    List<Integer> threads(int ranks) {
        return threads != null
                ? threads
                : List.of(Math.max(1, Runtime.getRuntime().availableProcessors() / ranks));
    }

    Duration timeout() {
        return Duration.ofSeconds(timeoutSeconds);
    }

    /** Returns whether a peer takes turns. */
    boolean has(Peer peer) {
        return peers.contains(peer) || peers.contains(Peer.ALL);
    }

    /**
     * Finds PyTorch, if it is to take turns.
     *
     * @param bench what is measured
     * @param script the script of ours that measures it, or {@code null} if there is none
     * @param out where it is said that there is none, if it was not asked for by name
     * @return PyTorch, or nothing if it is left out
     */
    Optional<PythonPeer> findPyTorch(String bench, @Nullable String script, PrintStream out) {
        if (!has(Peer.PYTORCH)) {
            return Optional.empty();
        }
        if (script == null) {
            String problem = "has no PyTorch side: the others have";
            leaveOut("", "tp bench " + bench + " " + problem, out);
            return Optional.empty();
        }
        Optional<PythonPeer> found = PythonPeer.find(python, script);
        if (found.isEmpty()) {
            leaveOut(
                    "",
                    (python == null
                                    ? "neither python3 nor /usr/bin/python3 has"
                                    : python + " does not have")
                            + " PyTorch: apt-get install python3-torch libopenblas0-pthread, or"
                            + " name another with --python",
                    out);
        }
        return found;
    }

    /** Refuses what cannot be measured of PyTorch, or says so if it was not asked for by name. */
    void leaveOut(String of, String problem, PrintStream out) {
        if (peers.contains(Peer.PYTORCH)) {
            throw new BadInputException("--peers pytorch: " + problem);
        }
        out.println("PyTorch is left out" + of + ": " + problem);
    }
}
