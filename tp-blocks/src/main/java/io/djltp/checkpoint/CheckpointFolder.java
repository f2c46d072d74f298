package io.djltp.checkpoint;

import ai.djl.util.Utils;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.Closeable;
import java.io.IOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.WritableByteChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.OptionalLong;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.UnaryOperator;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A folder of checkpoints, one a step.
 *
 * <pre>
 *   step-00000120/index.json, index.json.sha256, part-0-of-3.safetensors, ..
 *   .writing-step-00000130-..    being written: synced, then renamed to step-00000130
 *   .removing-step-00000100-..   being removed
 *   .lock                        locked while a run uses the folder: its host, process and time
 * </pre>
 */
final class CheckpointFolder implements Closeable {

    private static final Logger logger = LoggerFactory.getLogger(CheckpointFolder.class);
    private static final String WRITING = ".writing-";
    private static final String REMOVING = ".removing-";
    private static final boolean WINDOWS = System.getProperty("os.name").startsWith("Windows");
    private static final Pattern STEP = Pattern.compile("step-(\\d{8,18})");

    /** How long the process of rank 0 waits for the parts of others. Less in tests. */
    Duration timeout = Duration.ofMinutes(10);

    /** What the bytes of parts go through on their way to the disk. For tests. */
    UnaryOperator<WritableByteChannel> output = UnaryOperator.identity();

    private final Path path;
    private final @Nullable FolderLock lock; // in the process of rank 0
    private final @Nullable String run; // null to read only
    private final Map<Long, Integer> attempts = new HashMap<>(); // at a step
    private final List<Path> givenUp = new ArrayList<>(); // a late process may write there again

    private CheckpointFolder(Path path, @Nullable FolderLock lock, @Nullable String run) {
        this.path = path;
        this.lock = lock;
        this.run = run;
    }

    /**
     * Opens a folder for a run, and makes it if there is none: in the process of rank 0, before the
     * other processes {@link #join} it. What an earlier run left half written or half removed is
     * removed.
     *
     * @param path the folder
     * @return the folder, which no other run can open until it is closed
     * @throws CheckpointException if another run uses the folder, or nothing can be written to it
     */
    static CheckpointFolder open(Path path) throws IOException {
        Path folder = path.toAbsolutePath().normalize();
        try {
            Files.createDirectories(folder);
            FolderLock lock = FolderLock.take(folder);
            CheckpointFolder opened = new CheckpointFolder(folder, lock, lock.run);
            try {
                removeLeftOver(folder);
                return opened;
            } catch (IOException | RuntimeException e) {
                lock.close();
                throw e;
            }
        } catch (IOException e) {
            throw CheckpointException.of(
                    "Checkpoints cannot be written to " + path + ", choose another folder", e);
        }
    }

    private static void removeLeftOver(Path folder) throws IOException {
        try (DirectoryStream<Path> entries = Files.newDirectoryStream(folder)) {
            for (Path entry : entries) {
                if (isLeftOver(entry.getFileName().toString())) {
                    logger.info("{} was left by a run that ended early: it is removed", entry);
                    Utils.deleteQuietly(entry);
                }
            }
        }
    }

    /** Removes what was half written in the process of rank 0, now and before the next begins. */
    void giveUp(Path folder) {
        Utils.deleteQuietly(folder);
        givenUp.add(folder);
    }

    /**
     * Opens a folder in another process of the run that has it open.
     *
     * @throws CheckpointException if no run has opened it
     */
    static CheckpointFolder join(Path path) throws IOException {
        CheckpointFolder folder = read(path);
        String run = FolderLock.runOf(folder.path);
        if (run.isEmpty()) {
            throw new CheckpointException(
                    path
                            + " is not open in the process of rank 0: the processes of a run need"
                            + " a shared folder");
        }
        return new CheckpointFolder(folder.path, null, run);
    }

    /**
     * Opens a folder to read from it, whoever uses it.
     *
     * @throws CheckpointException if there is no such folder
     */
    static CheckpointFolder read(Path path) throws IOException {
        if (!Files.isDirectory(path)) {
            throw new CheckpointException(path + " is not a folder of checkpoints");
        }
        return new CheckpointFolder(path.toAbsolutePath().normalize(), null, null);
    }

    Path getPath() {
        return path;
    }

    /** Returns the name of the run that has opened it, 8 digits; null if it was opened to read. */
    @Nullable String getRun() {
        return run;
    }

    /** Returns whether this is the process of rank 0. */
    boolean isFirst() {
        return lock != null;
    }

    /**
     * Returns the steps of the complete checkpoints in ascending order.
     *
     * @throws IOException if the folder cannot be read, or a file has the name of a checkpoint
     */
    List<Long> getSteps() throws IOException {
        TreeSet<Long> steps = new TreeSet<>();
        try (DirectoryStream<Path> entries = Files.newDirectoryStream(path)) {
            for (Path entry : entries) {
                OptionalLong step = stepOf(entry.getFileName().toString());
                if (step.isPresent() && isFolder(entry)) {
                    steps.add(step.getAsLong());
                }
            }
        }
        return List.copyOf(steps);
    }

    /**
     * Opens the checkpoint of a step.
     *
     * @throws CheckpointException if there is none, it is damaged, or of another version
     */
    Checkpoint openStep(long step) throws IOException {
        if (!Files.isDirectory(folderOf(step))) {
            throw new CheckpointException(
                    "%s has no checkpoint of step %s, but of %s".formatted(path, step, getSteps()));
        }
        return Checkpoint.open(folderOf(step));
    }

    /**
     * Begins a checkpoint. All processes of the run begin the same ones in the same order.
     *
     * @param step the step, of which there is no checkpoint yet
     * @param mesh the ranks of the run, for people to read
     * @param parts the number of parts: places of the tensor group
     * @param own the parts that this process writes; none if another one has the same shards
     * @throws CheckpointException if there is a checkpoint of this step, or the folder was opened
     *     to read only, or is gone
     */
    CheckpointWriter begin(long step, String mesh, int parts, Collection<Integer> own)
            throws IOException {
        if (run == null) {
            throw new CheckpointException(path + " was opened to read only");
        }
        int attempt = attempts.merge(step, 1, Integer::sum);
        Path folder = path.resolve(WRITING + nameOf(step) + "-" + run + "-" + attempt);
        try {
            if (getSteps().contains(step)) {
                throw new CheckpointException(
                        "%s has a checkpoint of step %s: nothing is written over it"
                                .formatted(path, step));
            }
            givenUp.forEach(Utils::deleteQuietly);
            givenUp.clear();
        } catch (IOException e) { // the folder is gone
            throw CheckpointException.of("Checkpoints cannot be written to " + path, e);
        }
        return new CheckpointWriter(this, folder, step, mesh, parts, own);
    }

    /**
     * Removes old checkpoints. The process of rank 0 does it, after a new one is complete.
     *
     * @param keep how many of the newest stay, 1 or more
     * @return the steps of those that were removed
     */
    List<Long> prune(int keep) throws IOException {
        List<Long> steps = getSteps();
        List<Long> old = steps.subList(0, Math.max(0, steps.size() - keep));
        for (long step : old) {
            Path aside = path.resolve(REMOVING + nameOf(step) + "-" + run);
            rename(folderOf(step), aside);
            Utils.deleteQuietly(aside);
        }
        return old;
    }

    /**
     * Gives checkpoints that are newer than the one that a run goes on from another name, such as
     * {@code step-00000120.aside-3f1c27aa}: nothing of them is removed. The process of rank 0 does
     * it.
     *
     * @param step the step that the run goes on from
     * @return the steps that were put aside
     */
    List<Long> putAside(long step) throws IOException {
        List<Long> newer = getSteps().stream().filter(each -> each > step).toList();
        for (long each : newer) {
            rename(folderOf(each), path.resolve(nameOf(each) + ".aside-" + run));
        }
        return newer;
    }

    /** Returns the folder of a complete checkpoint. */
    Path folderOf(long step) {
        return path.resolve(nameOf(step));
    }

    private static String nameOf(long step) {
        return String.format(Locale.ROOT, "step-%08d", step);
    }

    /** Returns the step of a folder's name, if it is that of a complete checkpoint. */
    static OptionalLong stepOf(String name) {
        Matcher matcher = STEP.matcher(name);
        if (!matcher.matches()) {
            return OptionalLong.empty();
        }
        long step = Long.parseLong(matcher.group(1));
        return name.equals(nameOf(step)) ? OptionalLong.of(step) : OptionalLong.empty();
    }

    /**
     * Returns whether a checkpoint's folder is there: another process may have removed it.
     *
     * @throws CheckpointException if it is no folder. A newest one is not passed over
     */
    private static boolean isFolder(Path complete) throws CheckpointException {
        if (Files.isDirectory(complete)) {
            return true;
        }
        if (Files.exists(complete, LinkOption.NOFOLLOW_LINKS)) {
            throw new CheckpointException(
                    complete
                            + " has the name of a checkpoint and is no folder: copy the checkpoint"
                            + " back, or move it away to go on without it");
        }
        return false;
    }

    /** Returns whether a folder is half written or half removed. */
    static boolean isLeftOver(String name) {
        return name.startsWith(WRITING) || name.startsWith(REMOVING);
    }

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
        syncFolder(Objects.requireNonNull(to.getParent(), "folder"));
    }

    /** Lets other runs use the folder. */
    @Override
    public void close() throws IOException {
        givenUp.forEach(Utils::deleteQuietly);
        if (lock != null) {
            lock.close();
        }
    }

    /**
     * Says that a run uses a folder: the operating system's lock of a file, which ends with the
     * process however it ends, and in the file who has it.
     */
    private static final class FolderLock implements Closeable {

        /** The locked byte: behind the text, which others must be able to read on Windows too. */
        private static final long LOCKED = 1 << 20;

        private static final String FILE = ".lock";
        private static final int RUN = 8; // digits of the name of a run

        /**
         * The folders that this process has locked. It must not open their files again: whoever
         * closes a file on POSIX releases all locks that his process has on it.
         */
        private static final Map<Path, String> HELD = new ConcurrentHashMap<>();

        /** The name of the run that has it: others of the same folder had other ones. */
        final String run;

        private final Path folder;
        private final FileChannel channel;

        private FolderLock(Path folder, FileChannel channel, String run) {
            this.folder = folder;
            this.channel = channel;
            this.run = run;
        }

        /**
         * Locks a folder.
         *
         * @throws CheckpointException if another run has it
         * @throws IOException if the file cannot be written
         */
        static FolderLock take(Path path) throws IOException {
            Path folder = path.toRealPath();
            String run = UUID.randomUUID().toString().substring(0, RUN);
            String own =
                    "%s, process %d on %s since %s"
                            .formatted(
                                    run,
                                    ProcessHandle.current().pid(),
                                    hostName(),
                                    Instant.now().truncatedTo(ChronoUnit.SECONDS));
            String other = HELD.putIfAbsent(folder, own);
            if (other != null) {
                throw inUse(path, other);
            }
            FileChannel channel = null;
            try {
                channel =
                        FileChannel.open(
                                folder.resolve(FILE),
                                StandardOpenOption.CREATE,
                                StandardOpenOption.WRITE);
                if (channel.tryLock(LOCKED, 1, false) == null) {
                    throw inUse(path, read(folder));
                }
                channel.truncate(0);
                channel.write(ByteBuffer.wrap((own + "\n").getBytes(StandardCharsets.UTF_8)));
                channel.force(true);
                return new FolderLock(folder, channel, run);
            } catch (IOException | RuntimeException e) {
                HELD.remove(folder);
                if (channel != null) {
                    channel.close();
                }
                throw e;
            }
        }

        private static String hostName() {
            try {
                return InetAddress.getLocalHost().getHostName();
            } catch (UnknownHostException e) {
                return "an unnamed host";
            }
        }

        private static CheckpointException inUse(Path path, String by) {
            return new CheckpointException(
                    "%s is in use by another run%s: wait for its end, or choose another folder"
                            .formatted(path, by.isEmpty() ? "" : by.substring(RUN)));
        }

        /** Returns the name of the run that has locked a folder, or empty if none has. */
        static String runOf(Path path) throws IOException {
            Path folder = path.toRealPath();
            String own = HELD.get(folder);
            String by = own == null ? read(folder) : own;
            return by.isEmpty() ? by : by.substring(0, RUN);
        }

        /** Returns the name of the run and who it is, or nothing while that is being written. */
        private static String read(Path folder) throws IOException {
            try {
                String text = Files.readString(folder.resolve(FILE)).strip();
                return text.length() < RUN ? "" : text;
            } catch (NoSuchFileException e) {
                return "";
            }
        }

        /** Lets others have the folder. The file stays: removing it could remove another one's. */
        @Override
        public void close() throws IOException {
            if (channel.isOpen()) {
                boolean interrupted = Thread.interrupted(); // which would end the channel first
                try (channel) {
                    channel.truncate(0);
                } finally {
                    HELD.remove(folder);
                    if (interrupted) {
                        Thread.currentThread().interrupt();
                    }
                }
            }
        }
    }
}
