package io.djltp.internal;

import org.jspecify.annotations.Nullable;

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
    public static IllegalArgumentException argument(String message, @Nullable Object... values) {
        return new IllegalArgumentException(String.format(Locale.ROOT, message, values));
    }

    /**
     * Returns the exception of a call at the wrong time.
     *
     * @param message the message, with {@code %s} for each value
     * @param values the values
     * @return the exception
     */
    public static IllegalStateException state(String message, @Nullable Object... values) {
        return new IllegalStateException(String.format(Locale.ROOT, message, values));
    }

    /**
     * Returns a value that had to be given, or throws IllegalArgumentException.
     *
     * @param value the value, or {@code null} if it was not given
     * @param message what is said then
     * @param <T> the type of the value
     * @return the value
     */
    public static <T> T given(@Nullable T value, String message) {
        if (value == null) {
            throw new IllegalArgumentException(message);
        }
        return value;
    }

    /**
     * Returns a value that is there from some call on, or throws IllegalStateException.
     *
     * @param value the value, or {@code null} before that call
     * @param message what is said then, with {@code %s} for each value
     * @param values the values
     * @param <T> the type of the value
     * @return the value
     */
    public static <T> T present(@Nullable T value, String message, @Nullable Object... values) {
        if (value == null) {
            throw state(message, values);
        }
        return value;
    }

    /**
     * Throws IllegalArgumentException if a condition does not hold.
     *
     * @param holds whether the condition holds
     * @param message the message, with {@code %s} for each value
     * @param values the values
     */
    public static void check(boolean holds, String message, @Nullable Object... values) {
        if (!holds) {
            throw argument(message, values);
        }
    }

    /**
     * Throws IllegalStateException if a condition does not hold.
     *
     * @param holds whether the condition holds
     * @param message the message, with {@code %s} for each value
     * @param values the values
     */
    public static void checkState(boolean holds, String message, @Nullable Object... values) {
        if (!holds) {
            throw state(message, values);
        }
    }
}
