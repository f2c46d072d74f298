package io.djltp.job;

import java.io.IOException;
import java.io.InputStream;
import java.util.Properties;

/** The version of this library. */
final class Version {

    // what Maven writes into every jar
    private static final String PROPERTIES =
            "/META-INF/maven/io.djltp/tp-engine-bridge/pom.properties";

    private Version() {}

    /** Returns the version of the jar, or "development" for classes that are in no jar. */
    static String get() {
        try (InputStream in = Version.class.getResourceAsStream(PROPERTIES)) {
            Properties properties = new Properties();
            if (in != null) {
                properties.load(in);
            }
            return properties.getProperty("version", "development");
        } catch (IOException e) {
            return "development";
        }
    }
}
