package io.djltp.testing;

import org.testng.Assert;
import org.testng.Assert.ThrowingRunnable;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/** Calls that throw, with messages that tell the remedy. */
public final class Refusals {

    private Refusals() {}

    /**
     * Asserts that a call throws.
     *
     * @param type the type of what it throws
     * @param call the call
     * @param parts what its message contains
     * @param <T> the type of what it throws
     * @return what it throws
     */
    public static <T extends Throwable> T expect(
            Class<T> type, ThrowingRunnable call, String... parts) {
        T thrown = Assert.expectThrows(type, call);
        assertContains(thrown.getMessage(), parts);
        return thrown;
    }

    /**
     * Asserts that a call throws IllegalArgumentException.
     *
     * @param call the call
     * @param parts what its message contains
     * @return the message
     */
    public static String throwsArgument(ThrowingRunnable call, String... parts) {
        return expect(IllegalArgumentException.class, call, parts).getMessage();
    }

    /**
     * Asserts that a call throws IllegalStateException.
     *
     * @param call the call
     * @param parts what its message contains
     * @return the message
     */
    public static String throwsState(ThrowingRunnable call, String... parts) {
        return expect(IllegalStateException.class, call, parts).getMessage();
    }

    /**
     * Returns what a call logs.
     *
     * @param call the call
     * @return the lines that are written to standard error
     */
    public static String logged(ThrowingRunnable call) {
        PrintStream standard = System.err;
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        System.setErr(new PrintStream(said, true, StandardCharsets.UTF_8));
        try {
            call.run();
        } catch (Throwable e) {
            throw new AssertionError(e);
        } finally {
            System.setErr(standard);
        }
        return said.toString(StandardCharsets.UTF_8);
    }

    /**
     * Asserts that a text contains others.
     *
     * @param text the text
     * @param parts the others; " .. " in one of them stands for anything between two
     */
    public static void assertContains(String text, String... parts) {
        for (String all : parts) {
            for (String part : all.split(" \\.\\. ")) {
                Assert.assertTrue(text.contains(part), part + " in: " + text);
            }
        }
    }
}
