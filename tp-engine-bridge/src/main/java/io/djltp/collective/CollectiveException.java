package io.djltp.collective;

import org.jspecify.annotations.Nullable;

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
     * @param cause the failure of the rank that failed first, or {@code null} if that is not known
     */
    public CollectiveException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
