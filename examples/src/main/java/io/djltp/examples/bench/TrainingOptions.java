package io.djltp.examples.bench;

import ai.djl.Device;

import io.djltp.examples.BadInputException;
import io.djltp.examples.HeadKind;
import io.djltp.examples.JsonFile;
import io.djltp.examples.OptimizerName;
import io.djltp.torch.Precision;

import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

import java.io.PrintStream;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;

/** The options of measurements of training steps. */
final class TrainingOptions {

    private static final int LONG_RUN_PARTS = 10;

    @Mixin BenchOptions common;

    @Mixin PeerOptions peers = new PeerOptions();

    @Option(
            names = "--ranks",
            split = ",",
            defaultValue = "1",
            description = "Numbers of ranks, such as 1,2,4 (${DEFAULT-VALUE}).")
    List<Integer> ranks;

    @Option(
            names = "--optimizer",
            split = ",",
            defaultValue = "sgd",
            description =
                    "Any of ${COMPLETION-CANDIDATES} (${DEFAULT-VALUE}). adagrad is the row-wise"
                            + " Adagrad of this library, which stock DJL's layers are updated by"
                            + " too; PyTorch has none.")
    List<OptimizerName> optimizers;

    @Option(
            names = "--precision",
            split = ",",
            defaultValue = "float32",
            description =
                    "Arithmetic of this library's products, any of ${COMPLETION-CANDIDATES} that"
                            + " the processor has, such as float32,bfloat16 (${DEFAULT-VALUE})."
                            + " Weights are float32 in all.")
    List<Precision> precisions;

    @Option(names = "--no-stock", description = "Leave stock DJL out.")
    private boolean withoutStock;

    @Option(
            names = "--long-run",
            defaultValue = "0",
            description =
                    "Then do so many more steps of this library, and compare the first tenth with"
                            + " the last (${DEFAULT-VALUE}).")
    int longRun;

    @Option(
            names = "--floor-side",
            defaultValue = "2048",
            description =
                    "Side of the square matrices whose product says what the processor can do"
                            + " (${DEFAULT-VALUE}); the array that says what the memory can do has"
                            + " 32 times their elements.")
    int floorSide;

    /** Returns whether stock DJL takes turns. */
    boolean hasStock() {
        return !withoutStock && peers.hasDjl();
    }

    /** Checks everything that can be checked before anything is measured. */
    void check(PrintStream out) {
        common.check(ranks, out);
        BenchOptions.positive("--floor-side", floorSide);
        for (Precision precision : precisions) {
            try {
                precision.check(Device.cpu());
            } catch (IllegalArgumentException e) {
                throw new BadInputException(e.getMessage(), e);
            }
        }
        if (longRun != 0 && longRun < LONG_RUN_PARTS) {
            throw new BadInputException(
                    "--long-run must be 0, or at least 10 for a tenth of it to be a step, not "
                            + longRun);
        }
    }

    /** The options of measurements of networks with a large head. */
    static final class HeadOptions {

        @Option(
                names = "--head",
                description =
                        "How this library computes the head: ${COMPLETION-CANDIDATES}"
                                + " (${DEFAULT-VALUE}).")
        HeadKind head = HeadKind.FUSED;

        @Option(
                names = "--plot",
                description =
                        "PNG file for a chart of time and memory against classes; give several"
                                + " numbers of classes.")
        Path plot;

        /** Checks everything that can be checked before anything is measured. */
        void check() {
            if (plot != null && !plot.toString().toLowerCase(Locale.ROOT).endsWith(".png")) {
                throw new BadInputException("--plot " + plot + " must end in .png");
            }
            JsonFile.check("--plot", plot);
        }
    }
}
