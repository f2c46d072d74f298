package io.djltp.examples;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.util.Locale;
import java.util.function.Supplier;

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
     * @param cause the reason; its message may be all there is to say
     */
    public BadInputException(@Nullable String message, Throwable cause) {
        super(message, cause);
    }

    /**
     * Calls something that may refuse what the user has given.
     *
     * @param prefix the beginning of the message
     * @param call what is called
     * @param <T> what it returns
     * @return what it returns
     * @throws BadInputException if it throws IllegalArgumentException
     */
    public static <T extends @Nullable Object> T check(String prefix, Supplier<T> call) {
        try {
            return call.get();
        } catch (IllegalArgumentException e) {
            throw new BadInputException(prefix + e.getMessage(), e);
        }
    }

    /**
     * Returns whether something was not written because there is no room on a disk.
     *
     * @param thrown what was thrown
     * @return whether an exception of that is among its causes
     */
    public static boolean isOfFullDisk(Throwable thrown) {
        return thrown instanceof IOException
                        && String.valueOf(thrown.getMessage())
                                .matches("(?is).*(no space left|not enough space|quota).*")
                || thrown.getCause() != null && isOfFullDisk(thrown.getCause());
    }

    /**
     * Creates an exception.
     *
     * @param format what is wrong and what to do, with places for values
     * @param values the values
     */
    public BadInputException(String format, @Nullable Object... values) {
        this(String.format(Locale.ROOT, format, values));
    }
}
