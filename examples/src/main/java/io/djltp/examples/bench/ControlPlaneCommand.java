package io.djltp.examples.bench;

import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;

import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.Locale;
import java.util.concurrent.Callable;

/** Measures how the processes of a job meet, live and learn of a death, with many of them. */
@Command(
        name = "control-plane",
        description =
                "A job of many members in a few JVMs: how long they take to join, what each takes"
                        + " of memory, threads and network, and when all know that the last one"
                        + " died. What it counts of the network is all of the loopback device:"
                        + " run it in a network namespace of its own (unshare -rn) to see it"
                        + " alone.",
        mixinStandardHelpOptions = true)
final class ControlPlaneCommand implements Callable<Integer> {

    private static final double KIB = 1024;

    @Option(
            names = "--members",
            defaultValue = "1000",
            description = "The number of members (${DEFAULT-VALUE}).")
    private int members;

    @Option(
            names = "--processes",
            defaultValue = "6",
            description =
                    "The number of JVMs (${DEFAULT-VALUE}): the first and the last have one member"
                            + " each.")
    private int processes;

    @Option(
            names = "--end",
            defaultValue = "kill",
            description = "How the last member ends (${DEFAULT-VALUE}): ${COMPLETION-CANDIDATES}.")
    private ControlPlaneRun.End end;

    @Option(
            names = "--heartbeat-timeout",
            defaultValue = "60",
            description = "Seconds after which a silent member counts as dead (${DEFAULT-VALUE}).")
    private int heartbeat;

    @Option(
            names = "--timeout",
            defaultValue = "300",
            description = "Seconds in which all must have joined (${DEFAULT-VALUE}).")
    private int timeout;

    @Option(
            names = "--idle",
            defaultValue = "10",
            description = "Seconds in which nothing is done but live (${DEFAULT-VALUE}).")
    private int idle;

    @Option(
            names = "--repeats",
            defaultValue = "5",
            description = "The number of exchanges of 8 bytes (${DEFAULT-VALUE}).")
    private int repeats;

    @Option(
            names = "--all-reduce",
            description = "Also sum an array over connections between all pairs of members.")
    private boolean reduce;

    @Option(names = "--json", description = "File for the figures.")
    private Path json;

    private final PrintStream out = System.out;

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException, InterruptedException {
        BenchOptions.positive("--heartbeat-timeout", heartbeat);
        BenchOptions.positive("--timeout", timeout);
        BenchOptions.positive("--idle", idle);
        BenchOptions.positive("--repeats", repeats);
        if (processes < 3 || processes > members) {
            throw new BadInputException(
                    "--processes must be from 3 to --members %d, not %d"
                            .formatted(members, processes));
        }
        JsonFile.check(json);
        try (ControlPlaneRun run =
                new ControlPlaneRun(members, processes, heartbeat * 1000L, timeout * 1000L)) {
            run.join();
            run.exchange(repeats);
            if (reduce) {
                run.reduce();
            }
            run.idle(idle);
            print(run.end(end));
        }
        return 0;
    }

    private void print(ControlPlaneRow row) throws IOException {
        line("%d members in %d processes", row.members, row.processes);
        line("  all joined after         %.3f s", row.joinSeconds);
        line("  an exchange              %.4f s", row.exchangeSeconds);
        if (reduce) {
            line("  the first all-reduce     %.3f s, with its connections", row.reduceSeconds);
        }
        line("                               heap  resident, anonymous  threads");
        line(
                "  a member             %10.1f KiB  %10.1f KiB  %7.1f",
                row.memberHeap / KIB, row.memberAnonymous / KIB, row.memberThreads);
        line(
                "  the master           %10.1f KiB  %10.1f KiB  %7.0f",
                row.masterHeap / KIB, row.masterAnonymous / KIB, row.masterThreads);
        line("  the master's processor   %.2f %% while idle", 100 * row.masterCpu);
        row.traffic.forEach(this::print);
        if (end != ControlPlaneRun.End.CLOSE) {
            line("  all knew of the end (%s) after %.3f s:", end, row.knownSeconds);
            row.errors.forEach(each -> line("    %s", each));
        }
        JsonFile.write(json, row);
    }

    private void print(String what, LoopbackTraffic traffic) {
        double each = what.equals("idle") ? (double) members * idle : members;
        line(
                "  network, %-9s       %.1f packets, %.0f bytes a member%s",
                what,
                traffic.packets() / each,
                traffic.bytes() / each,
                what.equals("idle") ? " and second" : "");
    }

    private void line(String format, Object... values) {
        out.printf(Locale.ROOT, format + "%n", values);
    }
}
