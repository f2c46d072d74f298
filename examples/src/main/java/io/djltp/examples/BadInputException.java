package io.djltp.examples;

import java.util.Locale;

/** Something that the user has to change; the message says what and how. */
public final class BadInputException extends RuntimeException {

    private static final long serialVersionUID = 1L;

    /**
     * Creates an exception.
     *
     * @param message what is wrong and what to do
     */
    public BadInputException(String message) {
        super(message);
    }

    /**
     * Creates an exception.
     *
     * @param message what is wrong and what to do
     * @param cause the reason
     */
    public BadInputException(String message, Throwable cause) {
        super(message, cause);
    }

    /**
     * Creates an exception.
     *
     * @param format what is wrong and what to do, with places for values
     * @param values the values
     */
    public BadInputException(String format, Object... values) {
        this(String.format(Locale.ROOT, format, values));
    }
}
