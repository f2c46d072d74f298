package io.djltp.checkpoint.store;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.HexFormat;

/**
 * The index of a checkpoint on the disk, and beside it its SHA-256 as {@code sha256sum} writes it.
 */
final class IndexFiles {

    private IndexFiles() {}

    /** Writes an index. */
    static void write(Path folder, CheckpointIndex index) throws IOException {
        byte[] bytes = index.encode();
        DurableFiles.write(folder.resolve(StepNames.INDEX), bytes);
        DurableFiles.write(folder.resolve(StepNames.INDEX_SUM), sum(bytes));
    }

    /**
     * Reads an index.
     *
     * @throws CheckpointException if it is damaged or of another version
     */
    static CheckpointIndex read(Path folder) throws IOException {
        Path file = folder.resolve(StepNames.INDEX);
        byte[] bytes = bytes(file);
        if (!Arrays.equals(bytes(folder.resolve(StepNames.INDEX_SUM)), sum(bytes))) {
            throw new CheckpointException(
                    String.format(
                            "%s, bytes 0 to %d: its SHA-256 is not the one in %s: one of the two"
                                    + " is damaged",
                            file, bytes.length, StepNames.INDEX_SUM));
        }
        try {
            return CheckpointIndex.decode(bytes);
        } catch (CheckpointException e) {
            throw new CheckpointException(file + " cannot be used: " + e.getMessage(), e);
        }
    }

    private static byte[] bytes(Path file) throws IOException {
        try {
            return Files.readAllBytes(file);
        } catch (NoSuchFileException e) {
            throw new CheckpointException(
                    file + " is missing: this is not a whole checkpoint of this library", e);
        }
    }

    private static byte[] sum(byte[] bytes) {
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(bytes);
            String line = HexFormat.of().formatHex(digest) + "  " + StepNames.INDEX + "\n";
            return line.getBytes(StandardCharsets.UTF_8);
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e); // every Java has it
        }
    }
}
