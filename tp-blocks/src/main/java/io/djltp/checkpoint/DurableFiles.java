package io.djltp.checkpoint;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;

/** What has to be on the disk before something else is. */
final class DurableFiles {

    private static final boolean WINDOWS = System.getProperty("os.name").startsWith("Windows");

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
}
