package io.djltp.collective;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * A file of options for the JVMs that tests start, beside the archive of {@link SharedClasses}: it,
 * and what a JVM may leave out when it starts. None of it is what a test is about; those of loading
 * itself say otherwise.
 */
final class ForkOptions {

    private final Path archive;

    ForkOptions(Path archive) {
        this.archive = archive.toAbsolutePath();
    }

    /** Returns the file, whose name with an @ before it is an option of {@code java}. */
    Path getFile() {
        return Path.of(archive + ".options");
    }

    /**
     * Returns an option that lets signed jars be as good as unsigned ones. Those of BouncyCastle
     * are signed: no archive has classes of such, and to check 5,000 digests takes a fifth of a
     * second.
     */
    String getUnsignedJars() {
        return "-Djava.security.properties=" + security();
    }

    private Path security() {
        return Path.of(archive + ".security");
    }

    /** Writes it. */
    void write() throws IOException {
        Files.writeString(security(), "jdk.jar.disabledAlgorithms=RSA, DSA, EC\n");
        List<String> options = new ArrayList<>();
        options.add("-XX:SharedArchiveFile=" + archive);
        options.add(getUnsignedJars());
        if (System.getProperty("os.name").equals("Linux")) {
            // nobody calls it, and the preset is linked without: a tenth of the start
            options.add("-Dorg.bytedeco.openblas.load=none");
        }
        List<String> lines = new ArrayList<>();
        for (String option : options) {
            lines.add('"' + option.replace("\\", "\\\\") + '"');
        }
        Files.write(getFile(), lines);
    }
}
