package io.djltp.examples.bench;

import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.bench.BenchTable.BenchRow;
import io.djltp.examples.bench.BenchTable.PeerRow;
import io.djltp.examples.bench.PeerOptions.PythonPeer;
import io.djltp.examples.bench.WorkerProcess.WorkerTask;
import io.djltp.examples.bench.WorkerProcess.WorkerTask.Side;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;

/** Measures the operations between ranks of one JVM. */
@Command(
        name = "collective",
        description =
                "All-reduce, all-gather and reduce-scatter in shared memory, beside the time in"
                        + " which each rank's thread copies as many bytes.",
        mixinStandardHelpOptions = true)
final class CollectiveCommand implements Callable<Integer> {

    private static final int LARGEST = 1 << 30;

    @Mixin private BenchOptions options;
    @Mixin private PeerOptions peers = new PeerOptions();

    @Option(
            names = "--ranks",
            split = ",",
            defaultValue = "2,4",
            description = "Numbers of ranks (${DEFAULT-VALUE}).")
    private List<Integer> ranks;

    @Option(
            names = "--bytes",
            split = ",",
            defaultValue = "4096,65536,1048576,16777216,67108864",
            description = "Sizes of the whole array of a rank (${DEFAULT-VALUE}).")
    private List<Long> sizes;

    private final PrintStream out = System.out;
    private final List<PeerRow> sides = new ArrayList<>();

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        options.check(ranks, out);
        for (long bytes : sizes) {
            if (bytes < Float.BYTES || bytes > LARGEST || bytes % Float.BYTES != 0) {
                throw new BadInputException(
                        "--bytes must be multiples of 4 from 4 to 1073741824, not " + bytes);
            }
        }
        PythonPeer gloo = peers.findPyTorch("collective", "collective.py", out).orElse(null);
        out.printf("Measuring on %s ranks ...%n", ranks);
        List<BenchRow> rows = measure(gloo);
        BenchTable table = new BenchTable(out);
        table.printCollectives(rows);
        table.printPeers(sides);
        JsonFile.write(options.json, rows);
        return 0;
    }

    private List<BenchRow> measure(PythonPeer gloo) throws IOException {
        List<WorkerTask> tasks =
                ranks.stream()
                        .map(n -> probe(Side.COLLECTIVE, n))
                        .collect(Collectors.toCollection(ArrayList::new));
        if (gloo != null) {
            ranks.forEach(n -> tasks.add(probe(Side.PYTORCH, n)));
        }
        List<BenchRow> rows = new ArrayList<>();
        try (Turns turns = new Turns(tasks, options.timeout(), gloo)) {
            turns.run(options);
            for (int worker = 0; worker < ranks.size(); worker++) {
                for (int size = 0; size < sizes.size(); size++) {
                    addRows(rows, turns, worker, size);
                    if (gloo != null) {
                        addSides(turns, worker, size, "gloo of PyTorch " + gloo.version());
                    }
                }
            }
        }
        return rows;
    }

    private WorkerTask probe(Side side, int n) {
        return WorkerTask.probe(side, n, options.threads(n), sizes);
    }

    private void addSides(Turns turns, int worker, int size, String name) {
        int value =
                size * CollectiveProbe.Operation.values().length
                        + CollectiveProbe.Operation.ALL_REDUCE.ordinal();
        PeerRow ours = PeerRow.of(turns, worker, value, "this library");
        PeerRow gloo = PeerRow.of(turns, ranks.size() + worker, size, name);
        for (PeerRow row : List.of(ours, gloo)) {
            row.shape = Long.toString(sizes.get(size));
            row.optimizer = "all-reduce";
            row.ranks = Integer.toString(ranks.get(worker));
            row.ofOurs = row.seconds / ours.seconds;
            sides.add(row);
        }
    }

    private void addRows(List<BenchRow> rows, Turns turns, int worker, int size) {
        CollectiveProbe.Operation[] operations = CollectiveProbe.Operation.values();
        int first = size * operations.length;
        int copy = first + CollectiveProbe.Operation.COPY.ordinal();
        for (CollectiveProbe.Operation operation : operations) {
            if (operation == CollectiveProbe.Operation.COPY) {
                continue;
            }
            List<Double> times = turns.values(worker, first + operation.ordinal());
            BenchRow row = new BenchRow();
            row.name = operation.name().toLowerCase(Locale.ROOT).replace('_', '-');
            row.shape = Long.toString(sizes.get(size));
            row.ranks = turns.process(worker).getTask().ranks();
            row.oursSeconds = Samples.median(times);
            row.spread = Samples.spread(times);
            row.floorSeconds = Samples.median(turns.values(worker, copy));
            row.oursBytes = turns.process(worker).peakResident();
            rows.add(row);
        }
    }
}
