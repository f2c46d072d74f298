package io.djltp.checkpoint;

import java.nio.file.Path;

/**
 * Ends a training that a signal has asked to stop, after its checkpoint is complete. It leaves
 * {@code EasyTrain.fit} between two steps; on all processes of a job after the same step.
 */
public final class TrainingStoppedException extends RuntimeException {

    private static final long serialVersionUID = 1L;

    /** The status with which the process ends. */
    private final int exitStatus;

    /** Whether a checkpoint was written. */
    private final boolean saved;

    TrainingStoppedException(
            SaveSchedule.StopSignal signal, long step, Path folder, boolean saved) {
        super(
                signal.name()
                        + " has ended the training after step "
                        + step
                        + (saved
                                ? ", of which there is a checkpoint in "
                                : ", of which no checkpoint could be written in ")
                        + folder);
        exitStatus = signal.exitStatus();
        this.saved = saved;
    }

    /** {@return the exit status of a process that the signal ends, such as 143} */
    public int getExitStatus() {
        return exitStatus;
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
