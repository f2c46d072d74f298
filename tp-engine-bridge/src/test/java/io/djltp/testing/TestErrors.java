package io.djltp.testing;

import org.testng.Assert;

/** Asserts what an exception says. */
public final class TestErrors {

    private TestErrors() {}

    /** Asserts that a call throws, and that the message has all parts. */
    public static void assertThrows(
            Class<? extends Throwable> type, Assert.ThrowingRunnable call, String... parts) {
        String message = Assert.expectThrows(type, call).getMessage();
        for (String part : parts) {
            Assert.assertTrue(message.contains(part), message + " has no \"" + part + "\"");
        }
    }

    /**
     * Asserts that a call throws an IllegalArgumentException, and that its message has all parts.
     */
    public static void assertRefused(Assert.ThrowingRunnable call, String... parts) {
        assertThrows(IllegalArgumentException.class, call, parts);
    }
}
