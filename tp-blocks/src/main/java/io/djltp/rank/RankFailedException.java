package io.djltp.rank;

import org.jspecify.annotations.Nullable;

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
     * @param message what has happened
     * @param rank the rank that failed first, or -1 if a whole process was lost
     * @param remote whether that was in another process
     * @param cause its exception
     */
    public RankFailedException(
            String message, int rank, boolean remote, @Nullable Throwable cause) {
        super(message, cause);
        this.rank = rank;
        this.remote = remote;
    }

    /** {@inheritDoc} */
    @Override
    public String getMessage() {
        return String.valueOf(super.getMessage());
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
