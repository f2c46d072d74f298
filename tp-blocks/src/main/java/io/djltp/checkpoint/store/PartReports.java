package io.djltp.checkpoint.store;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Duration;
import java.util.Collection;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;

/**
 * What the processes of a run tell that of rank 0 about the parts that they write: a small file
 * beside each, synced after it. They share nothing else on the threads that write.
 */
final class PartReports {

    private static final long POLL_MILLIS = 20;
    private static final String HALF = ".half";

    private final Path folder;
    private final int parts;

    PartReports(Path folder, int parts) {
        this.folder = folder;
        this.parts = parts;
    }

    /** Says that a part is on the disk. */
    void written(int part, IndexedPart file) throws IOException {
        tell(StepNames.written(part, parts), file.encode());
    }

    /** Says that a part will not come. */
    void failed(int part, String why) throws IOException {
        tell(StepNames.failed(part, parts), why.getBytes(StandardCharsets.UTF_8));
    }

    private void tell(String name, byte[] text) throws IOException {
        Path half = folder.resolve(name + HALF);
        DurableFiles.write(half, text);
        Files.move(half, folder.resolve(name), StandardCopyOption.ATOMIC_MOVE);
    }

    /**
     * Waits for parts.
     *
     * @param others the parts that other processes write
     * @param timeout how long
     * @return what is said of each
     * @throws CheckpointException if one failed or is late
     */
    Map<Integer, IndexedPart> await(Collection<Integer> others, Duration timeout)
            throws IOException {
        Map<Integer, IndexedPart> found = new TreeMap<>();
        TreeSet<Integer> missing = new TreeSet<>(others);
        long end = System.nanoTime() + timeout.toNanos();
        while (true) {
            for (int part : others) {
                if (missing.contains(part) && isThere(part)) {
                    found.put(part, take(part));
                    missing.remove(part);
                }
            }
            if (missing.isEmpty()) {
                return found;
            }
            if (System.nanoTime() - end > 0) {
                throw new CheckpointException(
                        String.format(
                                "parts %s of %d were not written within %d s: their processes have"
                                        + " ended, or see another folder than this one",
                                missing, parts, timeout.toSeconds()));
            }
            sleep();
        }
    }

    private boolean isThere(int part) throws IOException {
        Path failed = folder.resolve(StepNames.failed(part, parts));
        if (Files.exists(failed)) {
            throw new CheckpointException(
                    "the process of part " + part + " failed: " + Files.readString(failed));
        }
        return Files.exists(folder.resolve(StepNames.written(part, parts)));
    }

    private IndexedPart take(int part) throws IOException {
        Path report = folder.resolve(StepNames.written(part, parts));
        IndexedPart file = IndexedPart.decode(Files.readAllBytes(report));
        Files.delete(report);
        return file;
    }

    private static void sleep() throws InterruptedIOException {
        try {
            Thread.sleep(POLL_MILLIS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("interrupted while waiting for other processes");
        }
    }

    /** Removes what this process has said of a part. */
    void withdraw(int part) throws IOException {
        Files.deleteIfExists(folder.resolve(StepNames.written(part, parts)));
        Files.deleteIfExists(folder.resolve(StepNames.written(part, parts) + HALF));
        Files.deleteIfExists(folder.resolve(StepNames.failed(part, parts) + HALF));
    }
}
