package io.djltp.examples.bench;

/** A process that measures has failed, and has said why. */
public final class WorkerFailedException extends RuntimeException {

    private static final long serialVersionUID = 1L;

    /**
     * Creates an exception.
     *
     * @param message which process, and what it has said
     */
    public WorkerFailedException(String message) {
        super(message);
    }
}
