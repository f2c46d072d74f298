package io.djltp.spark;

/**
 * A job of ranks that failed, at the driver: the message names the ranks that failed first, their
 * executor and its host.
 */
public class SparkJobException extends RuntimeException {

    private static final long serialVersionUID = 1L;

    /**
     * Creates an exception.
     *
     * @param message who failed, and why
     * @param cause what was thrown
     */
    public SparkJobException(String message, Throwable cause) {
        super(message, cause);
    }
}
