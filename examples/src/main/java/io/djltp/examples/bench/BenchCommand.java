package io.djltp.examples.bench;

import io.djltp.examples.BadInputException;
import io.djltp.examples.bench.TrainingOptions.HeadOptions;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;

/** Measures how fast and how large training steps are, beside stock DJL and beside a floor. */
@Command(
        name = "bench",
        description =
                "Measures a step of this library, of stock DJL, and the least that the machine"
                        + " could take, in turns in one run, each in a process of its own. Wants a"
                        + " machine with nothing else to do.",
        subcommands = {
            BenchCommand.HeadCommand.class,
            BenchCommand.LayerCommand.class,
            BenchCommand.TransformerCommand.class,
            CollectiveCommand.class,
            BenchCommand.StepCommand.class
        },
        mixinStandardHelpOptions = true)
public final class BenchCommand implements Runnable {

    @Spec private CommandSpec spec;

    /** Creates the command. */
    public BenchCommand() {}

    /** {@inheritDoc} */
    @Override
    public void run() {
        spec.commandLine().usage(spec.commandLine().getErr());
        throw new ParameterException(
                spec.commandLine(),
                "Choose what to measure: head, layer, transformer, collective or step");
    }

    /** Measures a step of a large head alone. */
    @Command(
            name = "head",
            description =
                    "A step of a large last layer: forward pass, loss, backward pass, update. Stock"
                            + " DJL is Linear, SoftmaxCrossEntropyLoss and DJL's own trainer.",
            mixinStandardHelpOptions = true)
    static final class HeadCommand implements Callable<Integer> {

        private static final int BATCH = 64;
        private static final int DIM = 128;

        @Mixin private TrainingOptions options;
        @Mixin private HeadOptions head;

        @Option(
                names = "--shapes",
                split = ",",
                description =
                        "Batch x features x classes, such as 64x128x1000000,256x128x500000 (these"
                                + " two).")
        private List<String> shapes;

        @Option(names = "--batch", description = "Rows of a batch; with --classes (64).")
        private Integer batch;

        @Option(names = "--dim", description = "Features; with --classes (128).")
        private Integer dim;

        @Option(
                names = "--classes",
                split = ",",
                description = "Numbers of classes, such as 10000,100000,1000000.")
        private int[] classes;

        /** {@inheritDoc} */
        @Override
        public Integer call() throws IOException {
            new TrainingBench("head", options, head, System.out).run(workloads());
            return 0;
        }

        private List<Workload> workloads() {
            if (classes == null) {
                if (batch != null || dim != null) {
                    throw new BadInputException("--batch and --dim go with --classes");
                }
                List<String> given =
                        shapes != null ? shapes : List.of("64x128x1000000", "256x128x500000");
                return given.stream().map(HeadCommand::parse).toList();
            }
            if (shapes != null) {
                throw new BadInputException("Give --shapes or --classes, not both");
            }
            int rows = batch == null ? BATCH : batch;
            int features = dim == null ? DIM : dim;
            List<Workload> workloads = new ArrayList<>();
            for (int units : classes) {
                BenchOptions.positive("--batch, --dim and --classes", rows, features, units);
                workloads.add(new Workload(Workload.Network.HEAD, rows, features, units));
            }
            return workloads;
        }

        private static Workload parse(String shape) {
            try {
                int[] sizes = Arrays.stream(shape.split("x")).mapToInt(Integer::parseInt).toArray();
                if (sizes.length == 3 && Arrays.stream(sizes).allMatch(size -> size > 0)) {
                    return new Workload(Workload.Network.HEAD, sizes[0], sizes[1], sizes[2]);
                }
            } catch (NumberFormatException e) {
                // said below
            }
            throw new BadInputException(
                    "--shapes: '%s' is not batch x features x classes, such as 64x128x1000000",
                    shape);
        }
    }

    /** Measures a step of layers that are cut over the ranks. */
    @Command(
            name = "layer",
            description =
                    "A step of 4 blocks, each ColumnParallelLinear, ReLU, RowParallelLinear and a"
                            + " residual connection. Stock DJL has Linear in their places.",
            mixinStandardHelpOptions = true)
    static final class LayerCommand implements Callable<Integer> {

        @Mixin private TrainingOptions options;

        @Option(names = "--batch", defaultValue = "256", description = "Rows (${DEFAULT-VALUE}).")
        private int batch;

        @Option(
                names = "--width",
                defaultValue = "1024",
                description = "Features between the blocks (${DEFAULT-VALUE}).")
        private int width;

        @Option(
                names = "--hidden",
                defaultValue = "4096",
                description = "Features within a block (${DEFAULT-VALUE}).")
        private int hidden;

        /** {@inheritDoc} */
        @Override
        public Integer call() throws IOException {
            BenchOptions.positive("--batch", batch);
            BenchOptions.positive("--width", width);
            BenchOptions.positive("--hidden", hidden);
            Workload workload = new Workload(Workload.Network.LAYER, batch, width, hidden);
            new TrainingBench("layer", options, new HeadOptions(), System.out)
                    .run(List.of(workload));
            return 0;
        }
    }

    /** Measures a step of the whole lemmatiser. */
    @Command(
            name = "step",
            description =
                    "A step of the lemmatiser of tp train, with made-up words: embeddings, data"
                            + " parallel, and the head. Stock DJL has a Linear as the head. The"
                            + " floor is that of the head alone.",
            mixinStandardHelpOptions = true)
    static final class StepCommand implements Callable<Integer> {

        @Mixin private TrainingOptions options;
        @Mixin private HeadOptions head;

        @Option(names = "--batch", defaultValue = "256", description = "Words (${DEFAULT-VALUE}).")
        private int batch;

        @Option(
                names = "--dim",
                defaultValue = "64",
                description = "Features of a word (${DEFAULT-VALUE}).")
        private int dim;

        @Option(
                names = "--classes",
                split = ",",
                defaultValue = "120658,1015603",
                description =
                        "Numbers of classes; German has 120658, Polish, Ukrainian and Russian"
                                + " together have 1015603 (${DEFAULT-VALUE}).")
        private int[] classes;

        /** {@inheritDoc} */
        @Override
        public Integer call() throws IOException {
            BenchOptions.positive("--batch", batch);
            BenchOptions.positive("--dim", dim);
            BenchOptions.positive("--classes", classes);
            List<Workload> workloads =
                    Arrays.stream(classes)
                            .mapToObj(n -> new Workload(Workload.Network.STEP, batch, dim, n))
                            .toList();
            new TrainingBench("step", options, head, System.out).run(workloads);
            return 0;
        }
    }

    /** Measures a step of a layer of a transformer. */
    @Command(
            name = "transformer",
            description =
                    "A step of one layer of an encoder, with attention and two linear layers: DJL's"
                            + " TransformerEncoderBlock, made parallel by a plan. Stock DJL has it"
                            + " as it is. Without dropout.",
            mixinStandardHelpOptions = true)
    static final class TransformerCommand implements Callable<Integer> {

        @Mixin private TrainingOptions options;

        @Option(
                names = "--batch",
                defaultValue = "8",
                description = "Sequences (${DEFAULT-VALUE}).")
        private int batch;

        @Option(
                names = "--tokens",
                defaultValue = "128",
                description = "Tokens of a sequence (${DEFAULT-VALUE}).")
        private int tokens;

        @Option(
                names = "--width",
                defaultValue = "768",
                description = "Features of a token (${DEFAULT-VALUE}).")
        private int width;

        @Option(
                names = "--heads",
                defaultValue = "12",
                description = "Heads, which divide the width (${DEFAULT-VALUE}).")
        private int heads;

        @Option(
                names = "--hidden",
                description = "Features between the two linear layers (4 times the width).")
        private Integer hidden;

        /** {@inheritDoc} */
        @Override
        public Integer call() throws IOException {
            BenchOptions.positive("--batch", batch);
            BenchOptions.positive("--tokens", tokens);
            BenchOptions.positive("--width", width);
            BenchOptions.positive("--heads", heads);
            int between = hidden == null ? 4 * width : hidden;
            BenchOptions.positive("--hidden", between);
            if (width % heads != 0) {
                throw new BadInputException(
                        "--width %d cannot be divided into --heads %d", width, heads);
            }
            Workload workload =
                    new Workload(
                            Workload.Network.TRANSFORMER, batch, width, between, tokens, heads);
            new TrainingBench("transformer", options, new HeadOptions(), System.out)
                    .run(List.of(workload));
            return 0;
        }
    }
}
