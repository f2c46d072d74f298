package io.djltp.checkpoint.store;

import io.djltp.job.LibraryVersion;

import java.util.Arrays;

/**
 * Which versions of this library read each other's checkpoints: what is kept of a weight may be
 * named otherwise by another version, so that only those with the same two first numbers do.
 */
final class ReadableVersions {

    private ReadableVersions() {}

    /** Returns whether one version reads the checkpoints of another. */
    static boolean reads(String own, String other) {
        return own.equals(LibraryVersion.DEVELOPMENT)
                || other.equals(LibraryVersion.DEVELOPMENT)
                || Arrays.equals(firstNumbers(own), firstNumbers(other));
    }

    private static String[] firstNumbers(String version) {
        String[] numbers = version.split("[.-]");
        return Arrays.copyOf(numbers, 2);
    }
}
