package io.djltp.examples.bench;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.Callable;

/** Measures a step of layers that are cut over the ranks. */
@Command(
        name = "layer",
        description =
                "A step of 4 blocks, each ColumnParallelLinear, ReLU, RowParallelLinear and a"
                        + " residual connection. Stock DJL has Linear in their places.",
        mixinStandardHelpOptions = true)
final class LayerCommand implements Callable<Integer> {

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
        new TrainingBench("layer", options, new HeadOptions(), System.out).run(List.of(workload));
        return 0;
    }
}
