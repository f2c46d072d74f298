package io.djltp.mesh;

/** The end of a job: one rank failed, with the cause of this exception, and all have stopped. */
public class RankFailedException extends RuntimeException {

    private static final long serialVersionUID = 1L;

    private final int rank;

    /**
     * Creates an exception.
     *
     * @param rank the rank that failed first
     * @param cause its exception
     */
    public RankFailedException(int rank, Throwable cause) {
        super("rank " + rank + " failed: " + cause, cause);
        this.rank = rank;
    }

    /**
     * Returns the rank that failed first.
     *
     * @return the rank
     */
    public int getRank() {
        return rank;
    }
}
