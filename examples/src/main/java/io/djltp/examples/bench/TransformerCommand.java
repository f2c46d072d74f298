package io.djltp.examples.bench;

import io.djltp.examples.BadInputException;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.Callable;

/** Measures a step of a layer of a transformer. */
@Command(
        name = "transformer",
        description =
                "A step of one layer of an encoder, with attention and two linear layers: DJL's"
                        + " TransformerEncoderBlock, made parallel by a plan. Stock DJL has it as"
                        + " it is. Without dropout.",
        mixinStandardHelpOptions = true)
final class TransformerCommand implements Callable<Integer> {

    @Mixin private TrainingOptions options;

    @Option(names = "--batch", defaultValue = "8", description = "Sequences (${DEFAULT-VALUE}).")
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
                    "--width " + width + " cannot be divided into --heads " + heads);
        }
        Workload workload =
                new Workload(Workload.Network.TRANSFORMER, batch, width, between, tokens, heads);
        new TrainingBench("transformer", options, new HeadOptions(), System.out)
                .run(List.of(workload));
        return 0;
    }
}
