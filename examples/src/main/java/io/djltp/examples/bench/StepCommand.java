package io.djltp.examples.bench;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;

/** Measures a step of the whole lemmatiser. */
@Command(
        name = "step",
        description =
                "A step of the lemmatiser of tp train, with made-up words: embeddings, data"
                        + " parallel, and the head. Stock DJL has a Linear as the head. The floor"
                        + " is that of the head alone.",
        mixinStandardHelpOptions = true)
final class StepCommand implements Callable<Integer> {

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
                    "Numbers of classes; German has 120658, Polish, Ukrainian and Russian together"
                            + " have 1015603 (${DEFAULT-VALUE}).")
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
