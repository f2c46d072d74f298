package io.djltp.examples.report;

import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;

import picocli.CommandLine.Option;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/** Where a training shows how it goes. */
public final class ReportOptions {

    @Option(
            names = "--report",
            description =
                    "A page of HTML with curves, memory, where the time goes and how the"
                            + " parameters are cut; written anew every 5 seconds.")
    private Path page;

    @Option(
            names = "--tensorboard",
            description = "A folder for a file of events that TensorBoard shows.")
    private Path events;

    /** Creates the options, which the command line sets. */
    public ReportOptions() {}

    /**
     * Checks that what was asked for can be written.
     *
     * @throws BadInputException if it cannot
     */
    public void check() {
        JsonFile.check("--report", page);
        if (events != null && Files.exists(events) && !Files.isDirectory(events)) {
            throw new BadInputException(
                    "--tensorboard " + events + " is a file: name a folder, which may be new");
        }
    }

    /**
     * Opens what was asked for.
     *
     * @param title the title of the page
     * @param facts what the page says of the training, by name
     * @return the reports, maybe none
     */
    public RunReports open(String title, Map<String, String> facts) {
        return new RunReports(page, events, title, facts);
    }
}
