package io.djltp.examples.bench;

import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.bench.BenchTable.Row;
import io.djltp.examples.bench.CollectiveProbe.Operation;
import io.djltp.examples.bench.WorkerProcess.PythonPeer;
import io.djltp.examples.bench.WorkerProcess.WorkerTask;
import io.djltp.examples.bench.WorkerProcess.WorkerTask.Side;
import io.djltp.torch.Precision;

import org.jspecify.annotations.Nullable;

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
        PythonPeer gloo = options.findPyTorch("collective", "collective.py", out).orElse(null);
        out.printf("Measuring on %s ranks ...%n", ranks);
        List<Row> rows = measure(gloo);
        BenchTable.print(
                rows,
                List.of("shape = bytes of the whole array of a rank, which a copy moves"),
                out);
        JsonFile.write(options.json, rows);
        return 0;
    }

    private List<Row> measure(@Nullable PythonPeer gloo) throws IOException {
        List<WorkerTask> tasks = new ArrayList<>();
        ranks.forEach(n -> tasks.add(probe(Side.COLLECTIVE, n)));
        if (gloo != null) {
            ranks.forEach(n -> tasks.add(probe(Side.PYTORCH, n)));
        }
        List<Row> rows = new ArrayList<>();
        try (Turns turns = new Turns(tasks, options.timeout(), gloo)) {
            turns.run(options);
            for (int worker = 0; worker < ranks.size(); worker++) {
                for (int size = 0; size < sizes.size(); size++) {
                    for (Operation each : Operation.values()) {
                        int value = size * Operation.values().length + each.ordinal();
                        double ours = turns.median(worker, value);
                        String side = each == Operation.COPY ? "a copy" : Side.OURS.title;
                        rows.add(row(turns, worker, value, size, each, side, ours));
                        if (gloo != null && each == Operation.ALL_REDUCE) {
                            side = "gloo of PyTorch " + gloo.version();
                            int peer = ranks.size() + worker;
                            rows.add(row(turns, peer, size, size, each, side, ours));
                        }
                    }
                }
            }
        }
        return rows;
    }

    private WorkerTask probe(Side side, int n) {
        return WorkerTask.probe(side, n, options.threads(n).get(0), sizes);
    }

    private Row row(
            Turns turns,
            int worker,
            int value,
            int size,
            Operation operation,
            String side,
            double ours) {
        return new Row(
                "collective",
                side,
                sizes.get(size).toString(),
                operation.name().toLowerCase(Locale.ROOT).replace('_', '-'),
                null,
                Precision.FLOAT32.toString(),
                ranks.get(worker % ranks.size()).toString(),
                turns.median(worker, value),
                turns.spread(worker, value),
                turns.process(worker).peakResident(),
                turns.median(worker, value) / ours);
    }
}
