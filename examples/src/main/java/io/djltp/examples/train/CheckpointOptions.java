package io.djltp.examples.train;

import io.djltp.checkpoint.Checkpoint;
import io.djltp.checkpoint.CheckpointListener;
import io.djltp.checkpoint.Resumable;
import io.djltp.examples.BadInputException;

import picocli.CommandLine.Option;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.function.BooleanSupplier;

/** The options that say when a training is saved, and that it goes on where it was. */
public final class CheckpointOptions {

    private static final String FOLDER = "checkpoints"; // in that of --out

    @Option(
            names = "--checkpoint-steps",
            description =
                    "Save the training after every so many steps, to --out/"
                            + FOLDER
                            + ". SIGTERM and Ctrl-C then end it with a checkpoint.")
    private Long steps;

    @Option(names = "--checkpoint-minutes", description = "The same after every so many minutes.")
    private Double minutes;

    @Option(
            names = "--keep",
            defaultValue = "3",
            description = "How many checkpoints are kept (${DEFAULT-VALUE}).")
    private int keep;

    @Option(
            names = "--resume",
            description =
                    "Go on from the newest checkpoint, or begin if there is none. The ranks may be"
                            + " others than before.")
    private boolean resume;

    @Option(
            names = "--resume-from",
            description =
                    "Go on from the checkpoint of this step, such as when a newer one is damaged."
                            + " Newer ones are put aside.")
    private Long from;

    private Path folder;

    /** Creates the options, which are set by the command line. */
    public CheckpointOptions() {}

    /**
     * Checks everything that can be checked before anything is read.
     *
     * @param out the folder of the run, or {@code null} if none was given
     */
    public void check(Path out) {
        DeviceOptions.positive("--checkpoint-steps", steps);
        DeviceOptions.positive("--checkpoint-minutes", minutes);
        DeviceOptions.positive("--keep", keep);
        DeviceOptions.positive("--resume-from", from);
        if (!isOn()) {
            return;
        }
        if (out == null) {
            throw new BadInputException(
                    "--checkpoint-steps, --checkpoint-minutes, --resume and --resume-from need"
                            + " --out, the folder of the run");
        }
        folder = out.resolve(FOLDER);
    }

    /** Checks what a run before has left in the folder, in the process that has it. */
    public void checkFolder() {
        if (isOn()) {
            checkSteps(steps());
        }
    }

    private void checkSteps(List<Long> before) {
        // what a run before has left is neither mixed with another nor written over
        if (!isResume() && !before.isEmpty()) {
            throw new BadInputException(
                    "%s has checkpoints of a run, the newest of step %d: --resume goes on from it;"
                            + " or choose another --out",
                    folder, before.get(before.size() - 1));
        }
        if (from != null && !before.contains(from)) {
            throw new BadInputException(
                    "--resume-from %d: %s has %s",
                    from, folder, before.isEmpty() ? "no checkpoint" : "those of steps " + before);
        }
    }

    private List<Long> steps() {
        try {
            return Files.isDirectory(folder)
                    ? List.copyOf(Checkpoint.list(folder).keySet())
                    : List.of();
        } catch (IOException e) {
            throw new BadInputException(folder + " cannot be read: " + e.getMessage(), e);
        }
    }

    /** {@return what can be gone on from if the run ends now, in words, or {@code null}} */
    String describeNewest() {
        List<Long> saved = isOn() ? steps() : List.of();
        return saved.isEmpty()
                ? null
                : "%s has the checkpoint of step %d: --resume goes on from it"
                        .formatted(folder, saved.get(saved.size() - 1));
    }

    /** Returns the folder of the checkpoints. */
    Path folder() {
        return folder;
    }

    /** Returns whether the training is saved. */
    boolean isOn() {
        return steps != null || minutes != null || isResume();
    }

    /** Returns whether the training goes on where a checkpoint is. */
    boolean isResume() {
        return resume || from != null;
    }

    /** Adds the options that the processes of a job must have alike. */
    void addTo(Map<String, String> values) {
        values.put("--checkpoint-steps", "" + steps);
        values.put("--checkpoint-minutes", "" + minutes);
        values.put("--resume", "" + resume);
        values.put("--resume-from", "" + from);
    }

    /**
     * Returns what saves the training and resumes it.
     *
     * @param options the options that make the training what it is
     * @param report what the run has to report so far, which goes on too
     * @param over says when the last step is done, of which there is a checkpoint
     * @return the listener, or {@code null} if the training is not saved
     */
    public CheckpointListener listener(
            Map<String, String> options, Resumable report, BooleanSupplier over) {
        if (!isOn()) {
            return null;
        }
        CheckpointListener.Builder builder =
                CheckpointListener.builder()
                        .setFolder(folder)
                        .optKeep(keep)
                        .optSignals("TERM", "INT")
                        .optOptions(options)
                        .optState("report", report)
                        .optWhen(over);
        if (steps != null) {
            builder.optEverySteps(steps);
        }
        if (from != null) {
            builder.optResumeFrom(from);
        }
        if (minutes != null) {
            builder.optEveryMinutes(minutes);
        }
        return builder.build();
    }
}
