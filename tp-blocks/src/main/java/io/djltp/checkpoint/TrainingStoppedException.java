package io.djltp.checkpoint;

import java.nio.file.Path;

/**
 * Ends a training that a signal has asked to stop, after its checkpoint is complete. It leaves
 * {@code EasyTrain.fit} between two steps; on all processes of a job after the same step.
 */
public class TrainingStoppedException extends RuntimeException {

    private static final long serialVersionUID = 1L;

    private final transient StopSignal signal;
    private final transient Path folder;

    /** The step after which the training was stopped. */
    private final long step;

    /** Whether there is a checkpoint of that step. */
    private final boolean saved;

    /**
     * Creates an exception.
     *
     * @param signal the signal
     * @param step the step after which training has ended
     * @param folder the folder of the checkpoints
     * @param saved whether the checkpoint of the step is complete
     */
    public TrainingStoppedException(StopSignal signal, long step, Path folder, boolean saved) {
        super(
                signal.name()
                        + " has ended the training after step "
                        + step
                        + (saved
                                ? ", of which there is a checkpoint in "
                                : ", of which no checkpoint could be written in ")
                        + folder);
        this.signal = signal;
        this.step = step;
        this.folder = folder;
        this.saved = saved;
    }

    /**
     * Returns the signal.
     *
     * @return the signal, with the exit status for the process
     */
    public StopSignal getSignal() {
        return signal;
    }

    /**
     * Returns the step after which training has ended.
     *
     * @return the step
     */
    public long getStep() {
        return step;
    }

    /**
     * Returns the folder of the checkpoints.
     *
     * @return the folder
     */
    public Path getFolder() {
        return folder;
    }

    /**
     * Returns whether the checkpoint of the step is complete.
     *
     * @return false if writing it has failed: an older one is then the newest
     */
    public boolean isSaved() {
        return saved;
    }
}
