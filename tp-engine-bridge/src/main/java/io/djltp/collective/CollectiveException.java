package io.djltp.collective;

/** A collective operation that could not be completed: every rank of the group gets one. */
public class CollectiveException extends RuntimeException {

    private static final long serialVersionUID = 1L;

    /**
     * Creates an exception.
     *
     * @param message what failed: the operation, the ranks and the sizes
     */
    public CollectiveException(String message) {
        super(message);
    }

    /**
     * Creates an exception.
     *
     * @param message what failed: the operation, the ranks and the sizes
     * @param cause the failure of the rank that failed first
     */
    public CollectiveException(String message, Throwable cause) {
        super(message, cause);
    }

    /**
     * Returns this failure of a group as an exception of one rank: a shared one would carry another
     * thread's stack trace.
     *
     * @param rank the rank
     * @param size the number of ranks in the group
     * @return a new exception
     */
    CollectiveException onRank(int rank, int size) {
        return new CollectiveException(
                "rank " + rank + " of " + size + ": " + getMessage(),
                getCause() == null ? this : getCause());
    }
}
