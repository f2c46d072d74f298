package io.djltp.spark;

/** A task of a job that failed, as its executor tells it. */
final class RankTaskException extends RuntimeException {

    private static final long serialVersionUID = 1L;

    private final boolean own;

    /**
     * Creates an exception.
     *
     * @param message who failed, and why
     * @param own whether it was the task itself, and not another one that it learned of
     * @param cause what was thrown
     */
    RankTaskException(String message, boolean own, Throwable cause) {
        super(message, cause);
        this.own = own;
    }

    boolean isOwn() {
        return own;
    }
}
