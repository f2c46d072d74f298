package io.djltp.examples.bench;

import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.bench.BenchTable.BenchRow;
import io.djltp.examples.bench.BenchTable.PeerRow;
import io.djltp.examples.bench.Floor.FloorProbe;
import io.djltp.examples.bench.PeerOptions.PythonPeer;
import io.djltp.examples.bench.TrainingOptions.HeadOptions;
import io.djltp.examples.bench.WorkerProcess.WorkerTask;
import io.djltp.examples.bench.WorkerProcess.WorkerTask.Side;
import io.djltp.report.SystemMemory;
import io.djltp.torch.Precision;

import java.io.IOException;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;

/** Measures training steps: this library, stock DJL and the floor, in turns. */
final class TrainingBench {

    private static final double GIB = 1L << 30;
    private static final double FLOOR_BYTES = 1.5 * GIB; // the process that measures the floor

    private final String name;
    private final TrainingOptions options;
    private final HeadOptions head;
    private final PrintStream out;
    private final List<BenchRow> rows = new ArrayList<>();
    private final List<String> remarks = new ArrayList<>();
    private final List<PeerRow> sides = new ArrayList<>(); // with other peers than stock DJL
    private PythonPeer pyTorch; // or null

    /**
     * Prepares a measurement.
     *
     * @param name the name of its rows
     * @param options how to measure
     * @param head how the head is computed, and whether there is a chart
     * @param out where the table goes
     */
    TrainingBench(String name, TrainingOptions options, HeadOptions head, PrintStream out) {
        this.name = name;
        this.options = options;
        this.head = head;
        this.out = out;
    }

    /**
     * Checks the options, measures, prints and writes.
     *
     * @param workloads what is trained
     * @throws IOException if a process cannot be started or a file cannot be written
     */
    void run(List<Workload> workloads) throws IOException {
        options.check(out);
        head.check();
        workloads.forEach(this::checkRanks);
        checkMemory(workloads);
        pyTorch = options.peers.findPyTorch(name, script(workloads.get(0)), out).orElse(null);
        if (pyTorch != null) {
            options.peers.checkOptimizers(options.optimizers, out);
        }
        for (OptimizerName optimizer : options.optimizers) {
            for (Workload workload : workloads) {
                out.printf("Measuring %s %s, %s ...%n", name, workload.shape(), optimizer);
                measure(workload, optimizer);
            }
        }
        if (options.hasStock() && options.optimizers.contains(OptimizerName.ADAGRAD)) {
            remarks.add(
                    "stock of adagrad: DJL's layers, loss and trainer, with the row-wise Adagrad of"
                            + " this library, for DJL has none");
        }
        BenchTable table = new BenchTable(out);
        table.print(rows, remarks);
        table.printPeers(sides);
        JsonFile.write(options.common.json, rows);
        if (head.plot != null) {
            new ClassesPlot(rows).save(head.plot);
        }
    }

    private static String script(Workload workload) {
        switch (workload.network()) {
            case HEAD:
                return "head.py";
            case LAYER:
                return "layer.py";
            default:
                return null;
        }
    }

    private void checkRanks(Workload workload) {
        for (int ranks : options.ranks) {
            if (ranks > workload.mostRanks()) {
                throw new BadInputException(
                        "--ranks %d is more than %s can be cut into: use %d or fewer",
                        ranks, workload.shape(), workload.mostRanks());
            }
        }
    }

    /** Refuses measurements for which this machine has not enough memory. */
    private void checkMemory(List<Workload> workloads) {
        for (OptimizerName optimizer : options.optimizers) {
            for (Workload workload : workloads) {
                double ours =
                        options.precisions.size()
                                * options.ranks.size()
                                * workload.oursBytes(optimizer, head.head);
                double stock = options.hasStock() ? workload.stockBytes(optimizer) : 0;
                double total = ours + stock + FLOOR_BYTES;
                double available = SystemMemory.available().orElse(Long.MAX_VALUE);
                if (available < total) {
                    throw new BadInputException(
                            "%s with %s needs about %.1f GiB of memory (this library %.1f, stock"
                                    + " DJL %.1f), and %.1f GiB are available: use smaller sizes,"
                                    + " fewer --ranks, or --no-stock",
                            workload.shape(),
                            optimizer,
                            total / GIB,
                            ours / GIB,
                            stock / GIB,
                            available / GIB);
                }
            }
        }
    }

    private void measure(Workload workload, OptimizerName optimizer) throws IOException {
        List<WorkerTask> tasks = new ArrayList<>();
        for (Precision precision : options.precisions) {
            for (int ranks : options.ranks) {
                int threads = options.common.threads(ranks);
                tasks.add(
                        WorkerTask.ours(workload, optimizer, head.head, ranks, threads, precision));
            }
        }
        int ours = tasks.size();
        tasks.add(WorkerTask.probe(Side.FLOOR, 1, 1, List.of((long) options.floorSide)));
        if (options.hasStock()) {
            tasks.add(WorkerTask.peer(Side.STOCK, workload, optimizer, 1));
        }
        if (pyTorch != null && PeerOptions.isOfPyTorch(optimizer)) {
            int threads = options.common.threads(1);
            tasks.add(WorkerTask.peer(Side.PYTORCH, workload, optimizer, threads));
        }
        try (Turns turns = new Turns(tasks, options.common.timeout(), pyTorch)) {
            turns.run(options.common);
            int probe = turns.find(Side.FLOOR);
            Set<Precision> floors = EnumSet.of(Precision.FLOAT32); // to compare with
            floors.addAll(options.precisions);
            floors.forEach(
                    each -> remarks.add(floor(turns, probe, each).describe(workload, optimizer)));
            for (int i = 0; i < ours; i++) {
                BenchRow row = row(turns, i, workload, optimizer);
                Precision precision = turns.process(i).getTask().precision();
                row.floorSeconds = floor(turns, probe, precision).seconds(workload, optimizer);
                rows.add(row);
                if (pyTorch != null) {
                    row.peers = sides(turns, i, row);
                    sides.addAll(row.peers);
                }
                if (options.longRun > 0) {
                    remarks.add(longRun(turns.process(i)));
                }
            }
        }
    }

    private static Floor floor(Turns turns, int probe, Precision precision) {
        return new Floor(
                precision,
                turns.values(probe, FloorProbe.rateOf(precision)),
                turns.values(probe, 0));
    }

    private BenchRow row(Turns turns, int worker, Workload workload, OptimizerName optimizer) {
        WorkerTask task = turns.process(worker).getTask();
        List<Double> times = turns.values(worker, 0);
        BenchRow row = new BenchRow();
        row.name = name;
        row.shape = workload.shape();
        row.workload = workload;
        row.ranks = task.ranks();
        row.threads = task.threads();
        row.optimizer = optimizer.toString();
        row.oursSeconds = Samples.median(times);
        row.spread = Samples.spread(times);
        row.oursBytes = turns.process(worker).peakResident();
        row.weightsAndState = workload.stateBytes(optimizer);
        row.precision = task.precision().toString();
        int one = options.ranks.indexOf(1);
        one += one < 0 ? 0 : worker - worker % options.ranks.size(); // of the same precision
        row.ofOneRank =
                one < 0 ? Double.NaN : row.oursSeconds / Samples.median(turns.values(one, 0));
        int stock = turns.find(Side.STOCK);
        if (stock >= 0) {
            row.stockSeconds = Samples.median(turns.values(stock, 0));
            row.stockBytes = turns.process(stock).peakResident();
        }
        return row;
    }

    /** Returns this library on some ranks and, after the first, the peers. */
    private List<PeerRow> sides(Turns turns, int worker, BenchRow ours) {
        List<PeerRow> all = new ArrayList<>();
        all.add(PeerRow.of(turns, worker, 0, "this library"));
        all.get(0).ranks = ours.ranks + " x " + ours.threads;
        all.get(0).precision = ours.precision;
        if (worker == 0) {
            int stock = turns.find(Side.STOCK);
            if (stock >= 0) {
                all.add(PeerRow.of(turns, stock, 0, "stock DJL"));
            }
            int torch = turns.find(Side.PYTORCH);
            if (torch >= 0) {
                all.add(PeerRow.of(turns, torch, 0, "PyTorch " + pyTorch.version()));
            }
        }
        for (PeerRow row : all) {
            row.shape = ours.shape;
            row.optimizer = ours.optimizer;
            row.ranks = row.ranks == null ? "1 x " + options.common.threads(1) : row.ranks;
            row.ofOurs = row.seconds / ours.oursSeconds;
        }
        return all;
    }

    private String longRun(WorkerProcess worker) {
        List<Double> times = new ArrayList<>();
        for (int i = 0; i < options.longRun; i++) {
            times.add(worker.step()[0]);
        }
        int tenth = options.longRun / 10;
        double first = Samples.median(times.subList(0, tenth));
        double last = Samples.median(times.subList(times.size() - tenth, times.size()));
        return String.format(
                Locale.ROOT,
                "%d more steps of %s: median of the first tenth %.4f s, of the last %.4f s, %.3f"
                        + " times; peak memory then %.0f MB",
                options.longRun,
                worker.getTask().describe(),
                first,
                last,
                last / first,
                worker.peakResident() / 1e6);
    }
}
