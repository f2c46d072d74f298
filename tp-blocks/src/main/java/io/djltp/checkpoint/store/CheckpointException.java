package io.djltp.checkpoint.store;

import java.io.IOException;

/**
 * Why a checkpoint or its folder cannot be used: damaged, incomplete, of another version, in use.
 * The message says which file, and what to do.
 */
public final class CheckpointException extends IOException {

    private static final long serialVersionUID = 1L;

    /**
     * Creates an exception.
     *
     * @param message what is wrong, and what to do
     */
    public CheckpointException(String message) {
        super(message);
    }

    /**
     * Creates an exception.
     *
     * @param message what is wrong, and what to do
     * @param cause the reason
     */
    public CheckpointException(String message, Throwable cause) {
        super(message, cause);
    }
}
