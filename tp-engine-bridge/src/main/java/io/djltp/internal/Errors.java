package io.djltp.internal;

import java.util.Locale;

/** Exceptions whose messages name values, as {@code String.format} puts them in. */
public final class Errors {

    private Errors() {}

    /**
     * Returns the exception of a wrong argument.
     *
     * @param message the message, with {@code %s} for each value
     * @param values the values
     * @return the exception
     */
    public static IllegalArgumentException argument(String message, Object... values) {
        return new IllegalArgumentException(String.format(Locale.ROOT, message, values));
    }

    /**
     * Returns the exception of a call at the wrong time.
     *
     * @param message the message, with {@code %s} for each value
     * @param values the values
     * @return the exception
     */
    public static IllegalStateException state(String message, Object... values) {
        return new IllegalStateException(String.format(Locale.ROOT, message, values));
    }

    /**
     * Throws IllegalArgumentException if a condition does not hold.
     *
     * @param holds whether the condition holds
     * @param message the message, with {@code %s} for each value
     * @param values the values
     */
    public static void check(boolean holds, String message, Object... values) {
        if (!holds) {
            throw argument(message, values);
        }
    }
}
