package io.djltp.internal.environment;

import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SeekableByteChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFileAttributeView;
import java.nio.file.attribute.PosixFileAttributes;
import java.nio.file.attribute.PosixFilePermission;
import java.nio.file.attribute.PosixFilePermissions;
import java.nio.file.attribute.UserPrincipal;
import java.security.SecureRandom;
import java.util.HexFormat;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/** The secret by which the processes of a job know each other, where the program gives none. */
public final class JobSecret {

    private static final Logger logger = LoggerFactory.getLogger(JobSecret.class);

    private static final int BYTES = 32;
    private static final String FILE = "loopback-secret";
    private static final int DIGITS = 2 * BYTES;
    private static final int PATIENCE_MILLIS = 2000;
    private static final int PAUSE_MILLIS = 10;
    private static final Set<PosixFilePermission> PRIVATE_FOLDER =
            PosixFilePermissions.fromString("rwx------");
    private static final Set<PosixFilePermission> PRIVATE_FILE =
            PosixFilePermissions.fromString("rw-------");

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
    public static byte @Nullable [] given(Map<String, String> environment) {
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
            // editors end a file with a newline, some begin it with a mark, and neither is the
            // secret
            String secret = content.replaceFirst("^\ufeff", "").strip();
            return nonEmpty("The file " + file + " of TP_SECRET_FILE", secret);
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
     * Returns the secret of this user on this machine, for jobs that no other machine reaches. Any
     * user of a machine can connect to its loopback: the secret lies in a file that only its user
     * can read, as Erlang's cookie and X's authority do. The first process that needs it draws it,
     * all later ones of all jobs read it.
     *
     * @return the secret
     * @throws IllegalArgumentException if it cannot be kept from other users
     * @throws InterruptedException if the thread is interrupted while another process draws it
     */
    public static byte[] ofUser() throws InterruptedException {
        String user = System.getProperty("user.name").replaceAll("[^\\w.-]", "_");
        return in(
                Path.of(System.getProperty("user.home"), ".djltp"),
                // for those who have no home
                Path.of(System.getProperty("java.io.tmpdir"), "djltp-" + user));
    }

    /**
     * Returns the secret in the first of some folders, which need not exist, in which it can be.
     */
    static byte[] in(Path... folders) throws InterruptedException {
        IOException reason = new IOException();
        for (Path folder : folders) {
            try {
                return readOrDraw(folder);
            } catch (IOException | UnsupportedOperationException e) {
                reason.addSuppressed(e);
            }
        }
        throw new IllegalArgumentException(
                ("The processes of a job on loopback know each other by a file that only this user"
                                + " can read, and there is none (%s): set TP_SECRET to the same"
                                + " long random text on all processes")
                        .formatted(reason.getSuppressed()[0]),
                reason);
    }

    private static byte[] readOrDraw(Path folder) throws IOException, InterruptedException {
        if (!Files.isDirectory(folder)) {
            try {
                Files.createDirectory(folder, PosixFilePermissions.asFileAttribute(PRIVATE_FOLDER));
            } catch (FileAlreadyExistsException e) {
                logger.debug("Another process was first", e); // it is checked like a new one
            }
        }
        UserPrincipal self = self(folder);
        check(folder, self, PRIVATE_FOLDER);
        Path file = folder.resolve(FILE);
        try (SeekableByteChannel channel =
                Files.newByteChannel(
                        file,
                        Set.of(StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE),
                        PosixFilePermissions.asFileAttribute(PRIVATE_FILE))) {
            String drawn = HexFormat.of().formatHex(draw());
            channel.write(ByteBuffer.wrap(drawn.getBytes(StandardCharsets.US_ASCII)));
        } catch (FileAlreadyExistsException e) {
            check(file, self, PRIVATE_FILE);
        }
        return read(file);
    }

    /** Returns this user, who has no name in some containers. */
    private static UserPrincipal self(Path folder) throws IOException {
        Path probe = Files.createTempFile(folder, "probe", null);
        try {
            return Files.getOwner(probe);
        } finally {
            Files.deleteIfExists(probe);
        }
    }

    private static void check(Path path, UserPrincipal self, Set<PosixFilePermission> allowed)
            throws IOException {
        PosixFileAttributes attributes =
                Files.readAttributes(path, PosixFileAttributes.class, LinkOption.NOFOLLOW_LINKS);
        if (attributes.isSymbolicLink()) {
            throw new IOException(path + " is a link");
        }
        if (!attributes.owner().equals(self)) {
            throw new IOException(path + " is of the user " + attributes.owner().getName());
        }
        if (!allowed.containsAll(attributes.permissions())) {
            throw new IOException(path + " is open to other users: remove it");
        }
    }

    /** Waits for the process that has made the file to write into it. */
    private static byte[] read(Path file) throws IOException, InterruptedException {
        for (int i = 0; i < PATIENCE_MILLIS / PAUSE_MILLIS; i++) {
            byte[] text = Files.readAllBytes(file);
            if (text.length == DIGITS) {
                return text;
            }
            TimeUnit.MILLISECONDS.sleep(PAUSE_MILLIS);
        }
        throw new IOException(file + " does not hold a secret: remove it");
    }

    private static byte[] nonEmpty(String name, String text) {
        Errors.check(
                !text.isBlank(),
                "%s is empty: put the same long random text there on all processes",
                name);
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
