package io.djltp.checkpoint.store;

import com.google.gson.Gson;
import com.google.gson.JsonParseException;

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
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Queue;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
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
public final class CheckpointFolder implements Closeable {

    private static final Logger logger = LoggerFactory.getLogger(CheckpointFolder.class);
    private static final String WRITING = ".writing-";
    private static final String REMOVING = ".removing-";
    private static final Pattern STEP = Pattern.compile("step-(\\d{8,18})");
    private static final Duration TIMEOUT = Duration.ofMinutes(10);

    private final Path path;
    private final FolderLock lock; // in the process of rank 0
    private final String run; // null to read only
    private final Map<Long, Integer> attempts = new HashMap<>(); // at a step
    private final Queue<Path> givenUp = new ConcurrentLinkedQueue<>(); // half written folders
    private Duration timeout = TIMEOUT;
    private UnaryOperator<WritableByteChannel> output = UnaryOperator.identity();

    private CheckpointFolder(Path path, FolderLock lock, String run) {
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
     * @throws IOException if it cannot be read
     */
    public static CheckpointFolder open(Path path) throws IOException {
        Path folder = path.toAbsolutePath().normalize();
        try {
            Files.createDirectories(folder);
            FolderLock lock = FolderLock.take(folder);
            try {
                removeLeftOver(folder);
                return new CheckpointFolder(folder, lock, lock.run());
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
                    DurableFiles.removeFolder(entry);
                }
            }
        }
    }

    /**
     * Opens a folder in another process of the run that has it open.
     *
     * @param path the folder
     * @return the folder
     * @throws IOException if no run has opened it, or it cannot be read
     */
    public static CheckpointFolder join(Path path) throws IOException {
        CheckpointFolder folder = read(path);
        Optional<String> run = FolderLock.runOf(folder.path);
        if (run.isEmpty()) {
            throw new CheckpointException(
                    path
                            + " is not open in the process of rank 0: the processes of a run need"
                            + " a shared folder");
        }
        return new CheckpointFolder(folder.path, null, run.get());
    }

    /**
     * Opens a folder to read from it, whoever uses it.
     *
     * @param path the folder
     * @return the folder, in which no checkpoint can be begun
     * @throws CheckpointException if there is no such folder
     */
    public static CheckpointFolder read(Path path) throws IOException {
        if (!Files.isDirectory(path)) {
            throw new CheckpointException(path + " is not a folder of checkpoints");
        }
        return new CheckpointFolder(path.toAbsolutePath().normalize(), null, null);
    }

    /** {@return the folder} */
    public Path getPath() {
        return path;
    }

    /** {@return the name of the run that has opened it, 8 digits; null if it was opened to read} */
    public String getRun() {
        return run;
    }

    /**
     * Returns the complete checkpoints.
     *
     * @return their steps in ascending order
     * @throws IOException if the folder cannot be read, or a file has the name of a checkpoint
     */
    public List<Long> getSteps() throws IOException {
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
     * Opens the newest complete checkpoint. A damaged one is not passed over: going on from an
     * older one is for the user to decide.
     *
     * @return the checkpoint, or empty if there is none yet
     * @throws CheckpointException if it is damaged, or of another version
     * @throws IOException if it cannot be read
     */
    public Optional<Checkpoint> openNewest() throws IOException {
        List<Long> steps = getSteps();
        return steps.isEmpty()
                ? Optional.empty()
                : Optional.of(openStep(steps.get(steps.size() - 1)));
    }

    /**
     * Opens the checkpoint of a step.
     *
     * @param step the step
     * @return the checkpoint
     * @throws CheckpointException if there is none, it is damaged, or of another version
     * @throws IOException if it cannot be read
     */
    public Checkpoint openStep(long step) throws IOException {
        Path folder = path.resolve(nameOf(step));
        if (!Files.isDirectory(folder)) {
            throw new CheckpointException(
                    path + " has no checkpoint of step " + step + ", but of " + getSteps());
        }
        return Checkpoint.open(folder);
    }

    /**
     * Begins a checkpoint. All processes of the run begin the same ones in the same order.
     *
     * @param step the step, of which there is no checkpoint yet
     * @param mesh the ranks of the run, for people to read
     * @param parts the number of parts: places of the tensor group
     * @param own the parts that this process writes; none if another one has the same shards
     * @return the writer
     * @throws CheckpointException if there is a checkpoint of this step, or the folder was opened
     *     to read only
     * @throws IOException if nothing can be written: a full or read-only disk
     */
    public CheckpointWriter begin(long step, String mesh, int parts, Collection<Integer> own)
            throws IOException {
        if (run == null) {
            throw new CheckpointException(path + " was opened to read only");
        }
        if (lock != null) {
            lock.warnIfGone();
        }
        checkFree(step);
        removeGivenUp();
        int attempt = attempts.merge(step, 1, Integer::sum);
        Path folder = path.resolve(WRITING + nameOf(step) + "-" + run + "-" + attempt);
        return new CheckpointWriter(this, folder, step, mesh, parts, own);
    }

    private void checkFree(long step) throws CheckpointException {
        try {
            if (getSteps().contains(step)) {
                throw new CheckpointException(
                        path
                                + " has a checkpoint of step "
                                + step
                                + ": nothing is written over it");
            }
        } catch (IOException e) { // the folder is gone
            throw CheckpointException.of("Checkpoints cannot be written to " + path, e);
        }
    }

    /** Remembers a folder that was given up: a process that is late may write to it again. */
    void giveUp(Path folder) {
        givenUp.add(folder);
    }

    private void removeGivenUp() {
        for (Path folder = givenUp.poll(); folder != null; folder = givenUp.poll()) {
            try {
                DurableFiles.removeFolder(folder);
            } catch (IOException e) {
                logger.debug("{} is removed when the folder is opened again", folder, e);
            }
        }
    }

    /** Returns whether this is the process of rank 0. */
    boolean isFirst() {
        return lock != null;
    }

    /**
     * Sets how long the process of rank 0 waits for the parts of the others, once its own are
     * written.
     *
     * @param timeout the time, 10 minutes unless set
     */
    public void setTimeout(Duration timeout) {
        this.timeout = timeout;
    }

    Duration timeout() {
        return timeout;
    }

    /** Sets what the bytes of parts go through on their way to the disk. For tests. */
    void setOutput(UnaryOperator<WritableByteChannel> output) {
        this.output = output;
    }

    UnaryOperator<WritableByteChannel> output() {
        return output;
    }

    /**
     * Removes old checkpoints. The process of rank 0 does it, after a new one is complete.
     *
     * @param keep how many of the newest stay, 1 or more
     * @return the steps of those that were removed
     * @throws IOException if one cannot be removed
     * @throws IllegalArgumentException if none should stay
     */
    public List<Long> prune(int keep) throws IOException {
        if (keep < 1) {
            throw new IllegalArgumentException("One checkpoint has to stay, not " + keep);
        }
        if (!isFirst()) {
            throw new CheckpointException(path + " belongs to the process of rank 0");
        }
        List<Long> removed = new ArrayList<>();
        List<Long> steps = getSteps();
        for (long step : steps.subList(0, Math.max(0, steps.size() - keep))) {
            Path aside = path.resolve(REMOVING + nameOf(step) + "-" + run);
            DurableFiles.rename(path.resolve(nameOf(step)), aside);
            DurableFiles.removeFolder(aside);
            removed.add(step);
        }
        return removed;
    }

    /**
     * Gives checkpoints that are newer than the one that a run goes on from another name: nothing
     * of them is removed. The process of rank 0 does it.
     *
     * @param step the step that the run goes on from
     * @return the steps that were put aside, in folders such as {@code
     *     step-00000120.aside-3f1c27aa}
     * @throws IOException if one cannot be renamed
     */
    public List<Long> putAside(long step) throws IOException {
        List<Long> newer = getSteps().stream().filter(each -> each > step).toList();
        for (long each : newer) {
            DurableFiles.rename(
                    path.resolve(nameOf(each)), path.resolve(nameOf(each) + ".aside-" + run));
        }
        return newer;
    }

    /** Returns the folder of a complete checkpoint. */
    static String nameOf(long step) {
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

    /** Lets other runs use the folder. */
    @Override
    public void close() throws IOException {
        removeGivenUp();
        if (lock != null) {
            lock.close();
        }
    }

    /**
     * Says that a run uses a folder: the operating system's lock of a file, which ends with the
     * process however it ends, and in the file who has it.
     */
    private static final class FolderLock implements Closeable {

        private static final Logger logger = LoggerFactory.getLogger(FolderLock.class);

        /** The locked byte: behind the text, which others must be able to read on Windows too. */
        private static final long LOCKED = 1 << 20;

        private static final String FILE = ".lock";
        private static final Gson GSON = new Gson();

        /**
         * The folders that this process has locked. It must not open their files again: whoever
         * closes a file on POSIX releases all locks that his process has on it.
         */
        private static final Map<Path, Use> HELD = new ConcurrentHashMap<>();

        private final Path folder;
        private final FileChannel channel;
        private final String run;
        private boolean warned;

        /**
         * Who uses a folder.
         *
         * @param run a name that other runs of the same folder do not have
         */
        private record Use(String run, String host, long pid, String since) {

            static Use byThisProcess() {
                return new Use(
                        UUID.randomUUID().toString().substring(0, 8),
                        hostName(),
                        ProcessHandle.current().pid(),
                        Instant.now().truncatedTo(ChronoUnit.SECONDS).toString());
            }
        }

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
            Use own = Use.byThisProcess();
            Use other = HELD.putIfAbsent(folder, own);
            if (other != null) {
                throw inUse(path, other);
            }
            try {
                return take(path, folder, own);
            } catch (IOException | RuntimeException e) {
                HELD.remove(folder);
                throw e;
            }
        }

        private static FolderLock take(Path path, Path folder, Use own) throws IOException {
            FileChannel channel =
                    FileChannel.open(
                            folder.resolve(FILE),
                            StandardOpenOption.CREATE,
                            StandardOpenOption.WRITE);
            try {
                if (channel.tryLock(LOCKED, 1, false) == null) {
                    throw inUse(path, read(folder));
                }
                channel.truncate(0);
                channel.write(
                        ByteBuffer.wrap(
                                (GSON.toJson(own) + "\n").getBytes(StandardCharsets.UTF_8)));
                channel.force(true);
                return new FolderLock(folder, channel, own.run());
            } catch (IOException | RuntimeException e) {
                channel.close();
                throw e;
            }
        }

        private static CheckpointException inUse(Path path, Use by) {
            String process =
                    by == null
                            ? ""
                            : ", process %d on %s since %s".formatted(by.pid, by.host, by.since);
            return new CheckpointException(
                    path
                            + " is in use by another run"
                            + process
                            + ": wait for its end, or choose another folder");
        }

        private static String hostName() {
            try {
                return InetAddress.getLocalHost().getHostName();
            } catch (UnknownHostException e) {
                return "an unnamed host";
            }
        }

        /**
         * Returns the name of the run that has locked a folder.
         *
         * @return the name, or empty if none has
         */
        static Optional<String> runOf(Path path) throws IOException {
            Path folder = path.toRealPath();
            Use own = HELD.get(folder);
            return Optional.ofNullable(own == null ? read(folder) : own).map(Use::run);
        }

        /** Returns who has written the file, or {@code null} while it is being written. */
        private static Use read(Path folder) throws IOException {
            try {
                return GSON.fromJson(Files.readString(folder.resolve(FILE)), Use.class);
            } catch (NoSuchFileException | JsonParseException e) {
                return null;
            }
        }

        /** Returns the name of this run: others of the same folder had other ones. */
        String run() {
            return run;
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

        /** Says once that somebody has removed the folder, or what says that it is in use. */
        void warnIfGone() {
            if (!warned && Files.notExists(folder.resolve(FILE))) {
                warned = true;
                logger.warn(
                        "{} was removed while training writes to it: what was there is gone, and"
                                + " another run could use it too",
                        Files.exists(folder) ? folder.resolve(FILE) : folder);
            }
        }
    }
}
