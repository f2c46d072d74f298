package io.djltp.internal;

import java.io.IOException;
import java.io.InputStream;
import java.util.Properties;

/** The version of this library. */
public final class LibraryVersion {

    /** Classes that are in no jar. */
    public static final String DEVELOPMENT = "development";

    // what Maven writes into every jar
    private static final String PROPERTIES =
            "/META-INF/maven/io.djltp/tp-engine-bridge/pom.properties";

    private LibraryVersion() {}

    /**
     * Reads the version from the jar.
     *
     * @return the version, or {@link #DEVELOPMENT} for classes that are in no jar
     */
    public static String get() {
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
}
