package io.djltp.checkpoint.store;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.Locale;

/** What has to be on the disk before something else is. */
final class DurableFiles {

    static final boolean WINDOWS =
            System.getProperty("os.name").toLowerCase(Locale.ROOT).startsWith("windows");

    private DurableFiles() {}

    /** Writes a small file, which is on the disk when this returns. */
    static void write(Path file, byte[] bytes) throws IOException {
        try (FileChannel out =
                FileChannel.open(file, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
            ByteBuffer left = ByteBuffer.wrap(bytes);
            while (left.hasRemaining()) {
                out.write(left);
            }
            out.force(true);
        }
    }

    /** Brings the names of a folder's files to the disk. (Windows does it by itself.) */
    static void syncFolder(Path folder) throws IOException {
        if (!WINDOWS) {
            try (FileChannel channel = FileChannel.open(folder, StandardOpenOption.READ)) {
                channel.force(true);
            }
        }
    }

    /** Gives a folder another name, which is on the disk when this returns. */
    static void rename(Path from, Path to) throws IOException {
        Files.move(from, to, StandardCopyOption.ATOMIC_MOVE);
        syncFolder(to.getParent());
    }

    /** Removes a folder and the files in it, if there is one. */
    static void removeFolder(Path folder) throws IOException {
        if (!Files.isDirectory(folder, LinkOption.NOFOLLOW_LINKS)) {
            Files.deleteIfExists(folder);
            return;
        }
        try (DirectoryStream<Path> files = Files.newDirectoryStream(folder)) {
            for (Path file : files) {
                removeFolder(file);
            }
        }
        Files.deleteIfExists(folder);
    }
}
