package io.djltp.environment;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.security.SecureRandom;
import java.util.Map;

/** The secret by which the processes of a job know each other, where the program gives none. */
public final class JobSecret {

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
            String content = Files.readString(Path.of(file), StandardCharsets.UTF_8);
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
