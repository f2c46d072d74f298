package io.djltp.examples.bench;

import io.djltp.examples.BadInputException;
import io.djltp.examples.HeadKind;
import io.djltp.examples.JsonFile;

import picocli.CommandLine.Option;

import java.nio.file.Path;
import java.util.Locale;

/** The options of measurements of networks with a large head. */
final class HeadOptions {

    @Option(
            names = "--head",
            description =
                    "How this library computes the head: ${COMPLETION-CANDIDATES}"
                            + " (${DEFAULT-VALUE}).")
    HeadKind head = HeadKind.FUSED;

    @Option(
            names = "--plot",
            description =
                    "PNG file for a chart of time and memory against classes; give several numbers"
                            + " of classes.")
    Path plot;

    /** Checks everything that can be checked before anything is measured. */
    void check() {
        if (plot != null && !plot.toString().toLowerCase(Locale.ROOT).endsWith(".png")) {
            throw new BadInputException("--plot " + plot + " must end in .png");
        }
        JsonFile.check("--plot", plot);
    }
}
