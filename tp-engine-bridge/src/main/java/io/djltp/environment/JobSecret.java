package io.djltp.environment;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFileAttributeView;
import java.nio.file.attribute.PosixFilePermission;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.SecureRandom;
import java.util.Map;
import java.util.Set;

/** The secret by which the processes of a job know each other, where the program gives none. */
public final class JobSecret {

    private static final Logger logger = LoggerFactory.getLogger(JobSecret.class);

    private static final int BYTES = 32;

    private JobSecret() {}

    /**
     * Draws a secret.
     *
     * @return 32 random bytes
     */
    public static byte[] draw() {
        byte[] secret = new byte[BYTES];
        new SecureRandom().nextBytes(secret);
        return secret;
    }

    /**
     * Reads the secret that {@code TP_SECRET} holds, or the file that {@code TP_SECRET_FILE} names.
     *
     * @param environment the environment variables
     * @return the secret, or {@code null} if neither is set
     * @throws IllegalArgumentException if it is empty, or the file cannot be read
     */
    public static byte[] given(Map<String, String> environment) {
        String text = environment.get("TP_SECRET");
        if (text != null) {
            return nonEmpty("TP_SECRET", text);
        }
        String file = environment.get("TP_SECRET_FILE");
        if (file == null) {
            return null;
        }
        try {
            Path path = Path.of(file);
            String content = Files.readString(path, StandardCharsets.UTF_8);
            warnOfReaders(path);
            // editors and echo end a file with a newline that is no part of the secret
            return nonEmpty("The file " + file + " of TP_SECRET_FILE", content.strip());
        } catch (IOException | InvalidPathException e) {
            throw new IllegalArgumentException(
                    ("Cannot read the file '%s' (%s): set TP_SECRET_FILE to a text file that holds"
                                    + " the secret")
                            .formatted(file, e),
                    e);
        }
    }

    private static void warnOfReaders(Path file) throws IOException {
        PosixFileAttributeView view =
                Files.getFileAttributeView(file, PosixFileAttributeView.class);
        if (view == null) {
            return; // Windows
        }
        Set<PosixFilePermission> permissions = view.readAttributes().permissions();
        if (permissions.contains(PosixFilePermission.GROUP_READ)
                || permissions.contains(PosixFilePermission.OTHERS_READ)) {
            logger.warn(
                    "Other users can read the file {} of TP_SECRET_FILE ({}): chmod 600 it",
                    file,
                    PosixFilePermissions.toString(permissions));
        }
    }

    /**
     * Returns the secret of this user on this machine, for jobs that no other machine reaches. The
     * first process that needs it draws it.
     *
     * @return the secret
     * @throws IllegalArgumentException if it cannot be kept from other users
     * @throws InterruptedException if the thread is interrupted while another process draws it
     */
    public static byte[] ofUser() throws InterruptedException {
        return LocalSecret.ofUser().get();
    }

    private static byte[] nonEmpty(String name, String text) {
        if (text.isBlank()) {
            throw new IllegalArgumentException(
                    name + " is empty: put the same long random text there on all processes");
        }
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
