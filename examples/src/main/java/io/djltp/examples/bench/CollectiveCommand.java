package io.djltp.examples.bench;

import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;

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
        out.printf("Measuring on %s ranks ...%n", ranks);
        List<BenchRow> rows = measure();
        new BenchTable(out).printCollectives(rows);
        JsonFile.write(options.json, rows);
        return 0;
    }

    private List<BenchRow> measure() throws IOException {
        List<WorkerTask> tasks =
                ranks.stream()
                        .map(n -> WorkerTask.collective(n, options.threads(n), sizes))
                        .toList();
        List<BenchRow> rows = new ArrayList<>();
        try (Turns turns = new Turns(tasks, options.timeout())) {
            turns.run(options);
            for (int worker = 0; worker < tasks.size(); worker++) {
                for (int size = 0; size < sizes.size(); size++) {
                    addRows(rows, turns, worker, size);
                }
            }
        }
        return rows;
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
