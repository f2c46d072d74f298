package io.djltp.examples.bench;

import io.djltp.examples.BadInputException;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;

/** Measures a step of a large head alone. */
@Command(
        name = "head",
        description =
                "A step of a large last layer: forward pass, loss, backward pass, update. Stock DJL"
                        + " is Linear, SoftmaxCrossEntropyLoss and DJL's own trainer.",
        mixinStandardHelpOptions = true)
final class HeadCommand implements Callable<Integer> {

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
            BenchOptions.positive(
                    "--batch, --dim and --classes", new int[] {rows, features, units});
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
                "--shapes: '"
                        + shape
                        + "' is not batch x features x classes, such as 64x128x1000000");
    }
}
