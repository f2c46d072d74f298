package io.djltp.checkpoint;

/** A checkpoint that is being written. Can be asked by any thread. */
public final class PendingSave {

    private final long step;

    PendingSave(long step) {
        this.step = step;
    }

    /**
     * Returns the step after which the state was taken.
     *
     * @return the step
     */
    public long getStep() {
        return step;
    }

    /**
     * Returns whether it is over: complete, or failed.
     *
     * @return whether nothing is written any more
     */
    public boolean isDone() {
        throw new UnsupportedOperationException();
    }

    /**
     * Returns why there is no checkpoint.
     *
     * @return the failure, or {@code null} if there is none, or none yet
     */
    public Throwable getFailure() {
        throw new UnsupportedOperationException();
    }

    /**
     * Waits until the checkpoint is complete or has failed.
     *
     * @return whether it is complete
     */
    public boolean await() {
        throw new UnsupportedOperationException();
    }
}
