package io.djltp.spark;

/**
 * A job of ranks that failed, at the driver: the message names the ranks that failed first, their
 * executor and its host.
 */
public class SparkJobException extends RuntimeException {

    private static final long serialVersionUID = 1L;

    /** Whether an executor was lost. */
    private final boolean executorLost;

    SparkJobException(String message, Throwable cause) {
        this(message, cause, false);
    }

    /**
     * Creates an exception.
     *
     * @param message who failed, and why
     * @param cause what was thrown
     * @param executorLost whether it was for an executor that was lost, and not for what a task
     *     threw
     */
    SparkJobException(String message, Throwable cause, boolean executorLost) {
        super(message, cause);
        this.executorLost = executorLost;
    }

    /**
     * Returns whether the job failed because an executor was lost, so that another attempt may
     * succeed.
     *
     * @return whether an executor was lost
     */
    public boolean isExecutorLost() {
        return executorLost;
    }
}
