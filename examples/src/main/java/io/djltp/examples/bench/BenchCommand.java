package io.djltp.examples.bench;

import ai.djl.Device;

import io.djltp.examples.BadInputException;
import io.djltp.examples.HeadKind;
import io.djltp.examples.JsonFile;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.bench.BenchOptions.Peer;
import io.djltp.examples.bench.BenchTable.Row;
import io.djltp.examples.bench.Floor.FloorProbe;
import io.djltp.examples.bench.WorkerProcess.PythonPeer;
import io.djltp.examples.bench.WorkerProcess.WorkerTask;
import io.djltp.examples.bench.WorkerProcess.WorkerTask.Side;
import io.djltp.examples.bench.Workload.LossKind;
import io.djltp.examples.bench.Workload.Network;
import io.djltp.examples.train.DeviceOptions;
import io.djltp.examples.train.DeviceOptions.DeviceName;
import io.djltp.torch.Precision;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.Spec;

import java.io.IOException;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Collections;
import java.util.EnumSet;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.Callable;

/** Measures how fast and how large training steps are, beside stock DJL and beside a floor. */
@Command(
        name = "bench",
        description = {
            "Measures a step of this library, of stock DJL, and the least that the machine could"
                    + " take, in turns in one run, each in a process of its own. Wants a machine"
                    + " with nothing else to do. A step is the forward pass, the loss, the"
                    + " backward pass and the update",
            "- head: of a large last layer, on a small one. Stock DJL is Linear,"
                    + " SoftmaxCrossEntropyLoss and DJL's own trainer;",
            "- layer: of 4 blocks, each ColumnParallelLinear, ReLU, RowParallelLinear and a"
                    + " residual connection. Stock DJL has Linear in their places;",
            "- transformer: of one layer of an encoder, DJL's TransformerEncoderBlock, made"
                    + " parallel by a plan. Stock DJL has it as it is. Without dropout;",
            "- step: of the lemmatiser of tp train, with made-up words. Stock DJL has a Linear as"
                    + " the head. The floor is that of the head alone;",
            "- update: the update alone, of many small weights."
        },
        subcommands = CollectiveCommand.class,
        mixinStandardHelpOptions = true)
public final class BenchCommand implements Callable<Integer> {
    @Parameters(
            arity = "0..1",
            paramLabel = "WHAT",
            description = "What is trained: head, layer, transformer, step or update.")
    private Network network;

    @Mixin private BenchOptions options;

    @Option(
            names = "--shapes",
            split = ",",
            description =
                    "Rows x features x classes of a head (64x128x1000000,256x128x500000) or a step"
                            + " (256x64x120658,256x64x1015603: German, and Polish, Ukrainian and"
                            + " Russian), rows x width x hidden features of layers (256x1024x4096),"
                            + " rows x tokens x width x hidden features of a transformer"
                            + " (8x128x768x3072), weights x columns x rows of an update"
                            + " (500x64x64).")
    private @Nullable List<String> shapes;

    @Option(
            names = "--heads",
            defaultValue = "12",
            description = "Heads of a transformer, which divide the width (${DEFAULT-VALUE}).")
    private int heads;

    @Option(
            names = "--ranks",
            split = ",",
            defaultValue = "1",
            description = "Numbers of ranks, such as 1,2,4 (${DEFAULT-VALUE}).")
    private List<Integer> ranks;

    @Option(
            names = "--optimizer",
            split = ",",
            defaultValue = "sgd",
            description =
                    "Any of ${COMPLETION-CANDIDATES} (${DEFAULT-VALUE}). adagrad is the row-wise"
                            + " Adagrad of this library, which stock DJL's layers are updated by"
                            + " too; PyTorch has none.")
    private List<OptimizerName> optimizers;

    @Option(
            names = "--precision",
            split = ",",
            defaultValue = "float32",
            description =
                    "Arithmetic of this library's products, any of ${COMPLETION-CANDIDATES} that"
                            + " the processor has, such as float32,bfloat16 (${DEFAULT-VALUE})."
                            + " Weights are float32 in all.")
    private List<Precision> precisions;

    @Option(
            names = "--head",
            defaultValue = "fused",
            description =
                    "How this library computes the head: ${COMPLETION-CANDIDATES}"
                            + " (${DEFAULT-VALUE}).")
    private HeadKind head;

    @Option(
            names = "--loss",
            split = ",",
            defaultValue = "softmax",
            description =
                    "Losses of a head, any of ${COMPLETION-CANDIDATES} (${DEFAULT-VALUE}). Stock"
                            + " DJL has SigmoidBinaryCrossEntropyLoss as one-vs-all, and PyTorch is"
                            + " measured with softmax only.")
    private List<LossKind> losses;

    @Option(
            names = "--floor-side",
            defaultValue = "2048",
            description =
                    "Side of the square matrices whose product says what the processor can do"
                            + " (${DEFAULT-VALUE}); the array that says what the memory can do has"
                            + " 32 times their elements.")
    private int floorSide;

    @Option(
            names = "--device",
            defaultValue = "cpu",
            description =
                    "${COMPLETION-CANDIDATES}; with gpu, each rank has one, the peers have the"
                            + " first, and there is no floor (${DEFAULT-VALUE}).")
    private DeviceName device;

    @Spec private CommandSpec spec;
    private final PrintStream out = System.out;
    private final List<Row> rows = new ArrayList<>();
    private final List<String> remarks = new ArrayList<>();
    private @Nullable PythonPeer pyTorch;

    /** Creates the command. */
    public BenchCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        if (network == null) {
            spec.commandLine().usage(spec.commandLine().getErr());
            throw new ParameterException(
                    spec.commandLine(),
                    "Choose what to measure: head, layer, transformer, step, update or collective");
        }
        List<Workload> workloads =
                (shapes == null ? network.shapes : shapes)
                        .stream().map(shape -> Workload.parse(network, shape, heads)).toList();
        check(workloads);
        pyTorch = options.findPyTorch(network.toString(), network.script, out).orElse(null);
        if (pyTorch != null && optimizers.contains(OptimizerName.ADAGRAD)) {
            options.leaveOut(
                    " of adagrad",
                    "PyTorch has no row-wise Adagrad, which --optimizer adagrad is; measure adagrad"
                            + " with --peers djl",
                    out);
        }
        for (OptimizerName optimizer : optimizers) {
            for (Workload workload : workloads) {
                out.printf("Measuring %s %s, %s ...%n", network, workload.shape(), optimizer);
                measure(workload, optimizer);
            }
        }
        if (options.has(Peer.DJL) && optimizers.contains(OptimizerName.ADAGRAD)) {
            remarks.add(
                    "stock of adagrad: DJL's layers, loss and trainer, with the row-wise Adagrad of"
                            + " this library, for DJL has none");
        }
        BenchTable.print(rows, remarks, out);
        JsonFile.write(options.json, rows);
        return 0;
    }

    private void check(List<Workload> workloads) {
        options.check(ranks, out);
        BenchOptions.positive("--floor-side", floorSide);
        if (network != Network.HEAD && losses.contains(LossKind.ONE_VS_ALL)) {
            throw new BadInputException("--loss one-vs-all is one of a head: use tp bench head");
        }
        boolean gpu = device == DeviceName.GPU;
        String obstacle = gpu ? DeviceOptions.missingGpus(Collections.max(ranks)) : null;
        if (obstacle != null) {
            throw new BadInputException(obstacle);
        }
        for (Precision precision : precisions) {
            try {
                precision.check(gpu ? Device.gpu(0) : Device.cpu());
            } catch (IllegalArgumentException e) {
                throw new BadInputException(e.getMessage(), e);
            }
        }
        for (Workload workload : workloads) {
            for (int each : ranks) {
                if (each > workload.mostRanks()) {
                    throw new BadInputException(
                            "--ranks %d is more than %s can be cut into: use %d or fewer",
                            each, workload.shape(), workload.mostRanks());
                }
            }
        }
    }

    private void measure(Workload shape, OptimizerName optimizer) throws IOException {
        List<WorkerTask> tasks = new ArrayList<>();
        List<Workload> workloads = losses.stream().map(shape::with).toList();
        for (Workload workload : workloads) {
            for (Precision precision : precisions) {
                for (int each : ranks) {
                    for (int threads : options.threads(each)) {
                        tasks.add(
                                WorkerTask.ours(
                                        workload, optimizer, head, each, threads, precision));
                    }
                }
            }
        }
        if (device == DeviceName.CPU) {
            tasks.add(WorkerTask.probe(Side.FLOOR, 1, 1, List.of((long) floorSide)));
        }
        for (Workload workload : workloads) {
            for (int threads : options.threads(1)) {
                if (options.has(Peer.DJL)) {
                    tasks.add(WorkerTask.peer(Side.STOCK, workload, optimizer, threads));
                }
                if (pyTorch != null
                        && optimizer != OptimizerName.ADAGRAD
                        && workload.loss() == LossKind.SOFTMAX) {
                    tasks.add(WorkerTask.peer(Side.PYTORCH, workload, optimizer, threads));
                }
            }
        }
        if (device == DeviceName.GPU) {
            tasks.replaceAll(WorkerTask::onGpu);
        }
        try (Turns turns = new Turns(tasks, options.timeout(), pyTorch)) {
            turns.run(options);
            double ours = turns.median(0, 0); // on the first number of ranks and threads
            for (int i = 0; i < tasks.size(); i++) {
                WorkerTask task = tasks.get(i);
                Workload workload = task.workload();
                if (workload == null) {
                    for (Workload each : workloads) {
                        addFloors(turns, i, each, optimizer, ours);
                    }
                } else {
                    rows.add(
                            new Row(
                                    network.toString(),
                                    task.side() == Side.PYTORCH
                                            ? "PyTorch " + Objects.requireNonNull(pyTorch).version()
                                            : task.side().title,
                                    workload.shape(),
                                    optimizer.toString(),
                                    lossOf(workload),
                                    task.precision().toString(),
                                    task.ranks() + " x " + task.threads(),
                                    turns.median(i, 0),
                                    turns.spread(i, 0),
                                    turns.process(i).peakResident(),
                                    turns.median(i, 0) / ours));
                }
            }
        }
    }

    private static @Nullable String lossOf(Workload workload) {
        return workload.network() == Network.HEAD ? workload.loss().toString() : null;
    }

    private void addFloors(
            Turns turns, int probe, Workload workload, OptimizerName optimizer, double ours) {
        Set<Precision> floors = EnumSet.of(Precision.FLOAT32); // to compare with
        floors.addAll(precisions);
        for (Precision precision : floors) {
            Floor floor =
                    new Floor(
                            precision,
                            turns.values(probe, FloorProbe.rateOf(precision)),
                            turns.values(probe, 0));
            double seconds = floor.seconds(workload, optimizer);
            remarks.add(floor.describe(workload, optimizer));
            rows.add(
                    new Row(
                            network.toString(),
                            Side.FLOOR.title,
                            workload.shape(),
                            optimizer.toString(),
                            lossOf(workload),
                            precision.toString(),
                            "-",
                            seconds,
                            null,
                            null,
                            seconds / ours));
        }
    }
}
