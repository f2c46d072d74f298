package io.djltp.examples.train;

import io.djltp.examples.JsonFile;
import io.djltp.examples.report.ReportOptions;
import io.djltp.launch.Launcher;

import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

import java.nio.file.Path;
import java.util.Map;

/** The options that all commands have that train. */
public abstract class JobOptions {

    /** Which ranks train. */
    @Mixin public final RankOptions ranks = new RankOptions();

    /** When the training is saved. */
    @Mixin public final CheckpointOptions checkpoints = new CheckpointOptions();

    /** Where the training shows how it goes. */
    @Mixin public final ReportOptions reports = new ReportOptions();

    /** The file for the figures of the run, or {@code null}. */
    @Option(names = "--json", description = "File for the figures and the losses of the run.")
    public Path json;

    /** Creates the options, which are set by the command line. */
    protected JobOptions() {}

    /** Checks everything that can be checked before anything is read or written. */
    protected abstract void check();

    /** Checks that the folder of the run can be written, in the process that writes it. */
    protected abstract void checkOut();

    /**
     * Returns the options that all processes must have alike: all but those of checkpoints, those
     * that only process 0 uses, and --tp, which the job compares.
     *
     * @return the values by the name of the option
     */
    protected abstract Map<String, String> alike();

    /**
     * Checks the files that are written, and those that would be in the way. It is for when the
     * processes have met: what one of them alone finds, the others are told.
     */
    final void checkFiles() {
        if (Launcher.process(System.getenv()) == 0) { // the others write no model
            checkpoints.checkFolder();
            checkOut();
        }
        JsonFile.check(json);
        reports.check();
    }
}
