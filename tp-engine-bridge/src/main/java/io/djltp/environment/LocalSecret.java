package io.djltp.environment;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SeekableByteChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.FileAttribute;
import java.nio.file.attribute.PosixFileAttributeView;
import java.nio.file.attribute.PosixFileAttributes;
import java.nio.file.attribute.PosixFilePermission;
import java.nio.file.attribute.PosixFilePermissions;
import java.nio.file.attribute.UserPrincipal;
import java.util.EnumSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/**
 * The secret by which the processes of one user know each other on one machine.
 *
 * <p>Any user of a machine can connect to its loopback. The secret lies in a file that only its
 * user can read, as Erlang's cookie and X's authority do: the first process that needs it draws it,
 * all later ones of all jobs read it.
 */
final class LocalSecret {

    private static final String FILE = "loopback-secret";
    private static final int DIGITS = 64; // of a secret
    private static final int PATIENCE_MILLIS = 2000;
    private static final int PAUSE_MILLIS = 10;
    private static final Set<PosixFilePermission> PRIVATE_FOLDER =
            PosixFilePermissions.fromString("rwx------");
    private static final Set<PosixFilePermission> PRIVATE_FILE =
            PosixFilePermissions.fromString("rw-------");

    private final List<Path> folders;

    /**
     * Creates a secret that lies in the first of some folders in which it can.
     *
     * @param folders the folders, which need not exist
     */
    LocalSecret(List<Path> folders) {
        this.folders = folders;
    }

    /** Returns that of this user: in the home, or where there is none, in the temporary folder. */
    static LocalSecret ofUser() {
        String user = System.getProperty("user.name").replaceAll("[^\\w.-]", "_");
        return new LocalSecret(
                List.of(
                        Path.of(System.getProperty("user.home"), ".djltp"),
                        Path.of(System.getProperty("java.io.tmpdir"), "djltp-" + user)));
    }

    /**
     * Reads the secret, or draws it.
     *
     * @return the secret
     * @throws IllegalArgumentException if it cannot be kept from other users
     */
    byte[] get() throws InterruptedException {
        IOException first = null;
        for (Path folder : folders) {
            try {
                return get(folder);
            } catch (IOException | UnsupportedOperationException e) {
                IOException reason = e instanceof IOException io ? io : new IOException(e);
                if (first == null) {
                    first = reason;
                } else {
                    first.addSuppressed(reason);
                }
            }
        }
        throw new IllegalArgumentException(
                ("The processes of a job on loopback know each other by a file that only this user"
                                + " can read, and there is none (%s): set TP_SECRET to the same"
                                + " long random text on all processes")
                        .formatted(first),
                first);
    }

    private static byte[] get(Path folder) throws IOException, InterruptedException {
        create(folder);
        UserPrincipal self = self(folder);
        check(folder, self, PRIVATE_FOLDER);
        Path file = folder.resolve(FILE);
        try (SeekableByteChannel channel =
                Files.newByteChannel(
                        file,
                        Set.of(StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE),
                        attribute(PRIVATE_FILE))) {
            channel.write(ByteBuffer.wrap(draw()));
        } catch (FileAlreadyExistsException e) {
            check(file, self, PRIVATE_FILE);
        }
        return read(file);
    }

    private static void create(Path folder) throws IOException {
        try {
            Files.createDirectory(folder, attribute(PRIVATE_FOLDER));
        } catch (FileAlreadyExistsException e) {
            // one that is there is checked like a new one
            return;
        }
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
        PosixFileAttributeView view =
                Files.getFileAttributeView(
                        path, PosixFileAttributeView.class, LinkOption.NOFOLLOW_LINKS);
        if (view == null) {
            throw new IOException("this system has no permissions of files that could be checked");
        }
        PosixFileAttributes attributes = view.readAttributes();
        if (attributes.isSymbolicLink()) {
            throw new IOException(path + " is a link");
        }
        if (!attributes.owner().equals(self)) {
            throw new IOException(path + " is of the user " + attributes.owner().getName());
        }
        EnumSet<PosixFilePermission> others = EnumSet.copyOf(attributes.permissions());
        others.removeAll(allowed);
        if (!others.isEmpty()) {
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

    private static byte[] draw() {
        return HexFormat.of().formatHex(JobSecret.draw()).getBytes(StandardCharsets.US_ASCII);
    }

    private static FileAttribute<Set<PosixFilePermission>> attribute(
            Set<PosixFilePermission> permissions) {
        return PosixFilePermissions.asFileAttribute(permissions);
    }
}
