package io.djltp.checkpoint;

import ai.djl.util.Preconditions;

import java.nio.file.Path;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BooleanSupplier;

/** The Builder to construct a {@link CheckpointListener}. */
public final class CheckpointBuilder {

    Path path;
    long everySteps;
    long everyNanos;
    boolean everyEpoch;
    int keep = 3;
    Long resumeFrom; // null for the newest
    BooleanSupplier when = () -> false;
    List<String> signals = List.of();
    Map<String, String> options = Map.of();
    final Map<String, Resumable> states = new LinkedHashMap<>();

    CheckpointBuilder() {}

    /**
     * Sets the folder of the checkpoints, which is made if there is none.
     *
     * @param path the folder; one that all processes of a job see, under whatever path
     * @return this builder
     */
    public CheckpointBuilder setFolder(Path path) {
        this.path = path;
        return this;
    }

    /**
     * Takes a checkpoint after every so many steps.
     *
     * @param steps the number of steps, 1 or more
     * @return this builder
     */
    public CheckpointBuilder optEverySteps(long steps) {
        Preconditions.checkArgument(
                steps > 0, "The steps between checkpoints must be 1 or more, not " + steps);
        everySteps = steps;
        return this;
    }

    /**
     * Takes a checkpoint after every so many minutes, by the clock of the process of rank 0.
     *
     * @param minutes the number of minutes, above 0
     * @return this builder
     */
    public CheckpointBuilder optEveryMinutes(double minutes) {
        Preconditions.checkArgument(
                minutes > 0, "The minutes between checkpoints must be above 0, not " + minutes);
        everyNanos = Math.max(1, (long) (minutes * Duration.ofMinutes(1).toNanos()));
        return this;
    }

    /**
     * Takes a checkpoint after every epoch and its validation.
     *
     * @param everyEpoch whether to do so; not, if this is not called
     * @return this builder
     */
    public CheckpointBuilder optEveryEpoch(boolean everyEpoch) {
        this.everyEpoch = everyEpoch;
        return this;
    }

    /**
     * Takes a checkpoint whenever this says so after a step, such as after the last one.
     *
     * @param when is asked after each step; says the same in all processes
     * @return this builder
     */
    public CheckpointBuilder optWhen(BooleanSupplier when) {
        this.when = when;
        return this;
    }

    /**
     * Sets how many checkpoints are kept, 3 if this is not called. Older ones are removed when a
     * new one is complete.
     *
     * @param keep the number, 1 or more
     * @return this builder
     */
    public CheckpointBuilder optKeep(int keep) {
        Preconditions.checkArgument(
                keep > 0, "The checkpoints to keep must be 1 or more, not " + keep);
        this.keep = keep;
        return this;
    }

    /**
     * Lets {@link CheckpointListener#resume} go on from an older checkpoint than the newest, such
     * as when that is damaged. Newer ones are put aside, in folders of other names.
     *
     * @param step the step of the checkpoint
     * @return this builder
     */
    public CheckpointBuilder optResumeFrom(long step) {
        resumeFrom = step;
        return this;
    }

    /**
     * Sets whether SIGTERM and SIGINT (Ctrl-C) end the training after the step at work with a
     * checkpoint and a {@link TrainingStoppedException}, whichever process of a job gets them. A
     * second signal ends the process at once. Not, if this is not called.
     *
     * @param signals whether they do
     * @return this builder
     */
    public CheckpointBuilder optSignals(boolean signals) {
        return optSignals(signals ? List.of("TERM", "INT") : List.of());
    }

    /**
     * Sets the signals that end the training, see {@link #optSignals(boolean)}. The processes of a
     * job listen to the same.
     *
     * @param names their names without SIG, such as TERM, INT and USR1
     * @return this builder
     */
    public CheckpointBuilder optSignals(List<String> names) {
        signals = List.copyOf(names);
        return this;
    }

    /**
     * Sets options that make a training what it is, such as a seed or the size of a batch. They are
     * compared when the training is resumed.
     *
     * @param options the options by name
     * @return this builder
     */
    public CheckpointBuilder optOptions(Map<String, String> options) {
        this.options = options;
        return this;
    }

    /**
     * Adds something that goes on where the checkpoint found it. Listeners of the trainer that are
     * {@link Resumable} need not be added.
     *
     * @param name its name
     * @param state what goes on
     * @return this builder
     */
    public CheckpointBuilder optState(String name, Resumable state) {
        states.put(name, state);
        return this;
    }

    /**
     * Builds the {@link CheckpointListener}.
     *
     * @return the listener
     */
    public CheckpointListener build() {
        Preconditions.checkArgument(
                path != null, "A CheckpointListener needs a folder: setFolder(path)");
        return new CheckpointListener(this);
    }
}
