package io.djltp.checkpoint.store;

import java.io.IOException;
import java.io.InputStream;
import java.util.Arrays;
import java.util.Properties;

/**
 * The version of this library, which a checkpoint names. What is kept of a weight may be named
 * otherwise by another version, so that only those with the same two first numbers read each
 * other's.
 */
final class LibraryVersion {

    /** Classes that are in no jar. */
    static final String DEVELOPMENT = "development";

    // what Maven writes into every jar
    private static final String PROPERTIES = "/META-INF/maven/io.djltp/tp-blocks/pom.properties";

    private LibraryVersion() {}

    /** Returns the version of the jar, or "development" for classes that are in no jar. */
    static String get() {
        try (InputStream in = LibraryVersion.class.getResourceAsStream(PROPERTIES)) {
            Properties properties = new Properties();
            if (in != null) {
                properties.load(in);
            }
            return properties.getProperty("version", DEVELOPMENT);
        } catch (IOException e) {
            return DEVELOPMENT;
        }
    }

    /** Returns whether one version reads the checkpoints of another. */
    static boolean reads(String own, String other) {
        return own.equals(DEVELOPMENT)
                || other.equals(DEVELOPMENT)
                || Arrays.equals(firstNumbers(own), firstNumbers(other));
    }

    private static String[] firstNumbers(String version) {
        String[] numbers = version.split("[.-]");
        return Arrays.copyOf(numbers, 2);
    }
}
