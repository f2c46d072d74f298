package io.djltp.checkpoint;

import io.djltp.training.TrainerState;

import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;

/**
 * What a {@link CheckpointListener} was built with.
 *
 * @param path the folder of the checkpoints
 * @param keep how many stay
 * @param resumeFrom the step that the user names, or {@code null} for the newest
 * @param everyEpoch whether a checkpoint is taken after each epoch
 * @param options what makes a training another one
 * @param compared all that the processes of a job must have alike, by the name of its setter
 */
record RunSettings(
        Path path,
        int keep,
        Long resumeFrom,
        boolean everyEpoch,
        RunOptions options,
        Map<String, String> compared) {

    private static final double NANOS_OF_MINUTE = 60e9;

    /** Returns the settings of a builder, which may change later. */
    static RunSettings of(CheckpointBuilder builder) {
        return new RunSettings(
                builder.path,
                builder.keep,
                builder.resumeFrom,
                builder.everyEpoch,
                new RunOptions(new LinkedHashMap<>(builder.options)),
                compared(builder));
    }

    /**
     * What {@code optWhen} says is not known before it is asked. One folder may have several paths,
     * and {@link RunFolder} sees whether it is one.
     */
    private static Map<String, String> compared(CheckpointBuilder builder) {
        Map<String, String> compared = new LinkedHashMap<>();
        compared.put("optEverySteps", positive(builder.everySteps));
        compared.put("optEveryMinutes", positive(builder.everyNanos / NANOS_OF_MINUTE));
        compared.put("optEveryEpoch", "" + builder.everyEpoch);
        compared.put("optKeep", "" + builder.keep);
        compared.put(
                "optResumeFrom",
                builder.resumeFrom == null ? RunOptions.NOT_SET : "" + builder.resumeFrom);
        compared.put("optSignals", "" + new TreeSet<>(builder.signals)); // in any order
        new TreeMap<>(builder.options)
                .forEach((name, value) -> compared.put("optOptions " + name, value));
        compared.put("the names of optState", "" + new TreeSet<>(builder.states.keySet()));
        return compared;
    }

    private static String positive(Number number) {
        return number.doubleValue() == 0 ? RunOptions.NOT_SET : "" + number;
    }

    /**
     * Compares the settings with those of the other processes of a job. All of them call it.
     *
     * @param state the trainer
     * @throws io.djltp.job.JobFailedException on all processes, if they differ
     */
    void checkSame(TrainerState state) {
        state.checkSame(
                "the settings of the CheckpointListeners",
                compared,
                "build them with the same settings on all processes");
    }
}
