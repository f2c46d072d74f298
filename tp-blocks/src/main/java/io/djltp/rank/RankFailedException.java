package io.djltp.rank;

import io.djltp.job.JobFailedException;

/** The end of a job: one rank failed, with the cause of this exception, and all have stopped. */
public class RankFailedException extends RuntimeException {

    private static final long serialVersionUID = 1L;

    /** The rank that failed first, or -1. */
    private final int rank;

    /** Whether that was in another process. */
    private final boolean remote;

    /**
     * Creates an exception.
     *
     * @param rank the rank that failed first
     * @param cause its exception
     */
    public RankFailedException(int rank, Throwable cause) {
        this("rank " + rank + " failed: " + cause, rank, false, cause);
    }

    private RankFailedException(String message, int rank, boolean remote, Throwable cause) {
        super(message, cause);
        this.rank = rank;
        this.remote = remote;
    }

    /**
     * Returns the exception for what a rank has thrown. If it is only the consequence of what
     * happened in another process, the exception says what that was.
     */
    static RankFailedException of(int rank, Throwable cause) {
        for (Throwable t = cause; t != null; t = t.getCause()) {
            if (t instanceof JobFailedException) {
                int failed = ((JobFailedException) t).getRank();
                return new RankFailedException(t.getMessage(), failed, true, cause);
            }
        }
        return new RankFailedException(rank, cause);
    }

    /** Returns the same exception with the stack trace of another call. */
    RankFailedException again() {
        return new RankFailedException(getMessage(), rank, remote, getCause());
    }

    /**
     * Returns the rank that failed first.
     *
     * @return the rank, or -1 if a whole process was lost
     */
    public int getRank() {
        return rank;
    }

    /**
     * Returns whether the failure was in another process.
     *
     * @return whether no rank of this process has failed on its own
     */
    public boolean isRemote() {
        return remote;
    }
}
