package io.djltp.checkpoint;

import java.nio.file.Path;

/**
 * Ends a training that a signal has asked to stop, after its checkpoint is complete. It leaves
 * {@code EasyTrain.fit} between two steps; on all processes of a job after the same step.
 */
public class TrainingStoppedException extends RuntimeException {

    private static final long serialVersionUID = 1L;

    private final transient Path folder;

    /** The name of the signal. */
    private final String signal;

    /** The exit status of a process that it ends. */
    private final int exitStatus;

    /** The step after which the training was stopped. */
    private final long step;

    /** Whether there is a checkpoint of that step. */
    private final boolean saved;

    /**
     * Creates an exception.
     *
     * @param signal the name of the signal, such as SIGTERM
     * @param exitStatus the exit status of a process that it ends, such as 143
     * @param step the step after which training has ended
     * @param folder the folder of the checkpoints
     * @param saved whether the checkpoint of the step is complete
     */
    public TrainingStoppedException(
            String signal, int exitStatus, long step, Path folder, boolean saved) {
        super(
                signal
                        + " has ended the training after step "
                        + step
                        + (saved
                                ? ", of which there is a checkpoint in "
                                : ", of which no checkpoint could be written in ")
                        + folder);
        this.signal = signal;
        this.exitStatus = exitStatus;
        this.step = step;
        this.folder = folder;
        this.saved = saved;
    }

    /** {@return the name of the signal, such as SIGTERM} */
    public String getSignal() {
        return signal;
    }

    /** {@return the exit status of a process that the signal ends, such as 143} */
    public int getExitStatus() {
        return exitStatus;
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
