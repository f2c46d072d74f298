package io.djltp.job;

import org.jspecify.annotations.Nullable;

/** A job that failed, or did not come together: every process of it gets one. */
public class JobFailedException extends RuntimeException {

    private static final long serialVersionUID = 1L;

    /** The process that failed first, or -1. */
    private final int process;

    /** The rank that failed first, or -1. */
    private final int rank;

    /**
     * Creates an exception.
     *
     * @param message what failed, and who
     * @param process the number of the process that failed, or -1 if it is not one alone
     * @param rank the rank that failed, or -1 if it is not one alone
     * @param cause what the rank threw, or {@code null} if that was in another process
     */
    public JobFailedException(String message, int process, int rank, @Nullable Throwable cause) {
        super(message, cause);
        this.process = process;
        this.rank = rank;
    }

    /**
     * Returns the process that failed first.
     *
     * @return the number of the process, or -1 if it is not one alone
     */
    public int getProcess() {
        return process;
    }

    /**
     * Returns the rank that failed first.
     *
     * @return the rank, or -1 if it is not one alone
     */
    public int getRank() {
        return rank;
    }

    /** {@inheritDoc} */
    @Override
    public String getMessage() {
        return String.valueOf(super.getMessage());
    }

    /** Returns the same for another thread: a shared one would carry that thread's stack trace. */
    JobFailedException copy() {
        return new JobFailedException(getMessage(), process, rank, getCause());
    }
}
