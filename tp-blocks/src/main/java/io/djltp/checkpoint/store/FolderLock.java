package io.djltp.checkpoint.store;

import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.Closeable;
import java.io.IOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Says that a run uses a folder: the operating system's lock of a file, which ends with the process
 * however it ends, and in the file who has it.
 */
final class FolderLock implements Closeable {

    private static final Logger logger = LoggerFactory.getLogger(FolderLock.class);

    /** The locked byte: behind the text, which others must be able to read on Windows too. */
    private static final long LOCKED = 1 << 20;

    private static final String FILE = ".lock";
    private static final String RUN = "run";

    /**
     * The folders that this process has locked. It must not open their files again: whoever closes
     * a file on POSIX releases all locks that his process has on it.
     */
    private static final Map<Path, JsonObject> HELD = new ConcurrentHashMap<>();

    private final Path folder;
    private final FileChannel channel;
    private final String run;
    private boolean warned;

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
        JsonObject own = describeThisProcess();
        JsonObject other = HELD.putIfAbsent(folder, own);
        if (other != null) {
            throw inUse(path, Optional.of(other));
        }
        try {
            return take(path, folder, own);
        } catch (IOException | RuntimeException e) {
            HELD.remove(folder);
            throw e;
        }
    }

    private static FolderLock take(Path path, Path folder, JsonObject own) throws IOException {
        FileChannel channel =
                FileChannel.open(
                        folder.resolve(FILE), StandardOpenOption.CREATE, StandardOpenOption.WRITE);
        try {
            if (channel.tryLock(LOCKED, 1, false) == null) {
                throw inUse(path, read(folder));
            }
            channel.truncate(0);
            channel.write(ByteBuffer.wrap((own + "\n").getBytes(StandardCharsets.UTF_8)));
            channel.force(true);
            return new FolderLock(folder, channel, own.get(RUN).getAsString());
        } catch (IOException | RuntimeException e) {
            channel.close();
            throw e;
        }
    }

    private static CheckpointException inUse(Path path, Optional<JsonObject> by) {
        return new CheckpointException(
                path
                        + " is in use by another run"
                        + by.map(
                                        json ->
                                                String.format(
                                                        ", process %s on %s since %s",
                                                        json.get("pid").getAsString(),
                                                        json.get("host").getAsString(),
                                                        json.get("since").getAsString()))
                                .orElse("")
                        + ": wait for its end, or choose another folder");
    }

    private static JsonObject describeThisProcess() {
        JsonObject json = new JsonObject();
        json.addProperty(RUN, UUID.randomUUID().toString().substring(0, 8));
        json.addProperty("host", host());
        json.addProperty("pid", ProcessHandle.current().pid());
        json.addProperty("since", Instant.now().truncatedTo(ChronoUnit.SECONDS).toString());
        return json;
    }

    private static String host() {
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
        JsonObject own = HELD.get(folder);
        return (own == null ? read(folder) : Optional.of(own)).map(j -> j.get(RUN).getAsString());
    }

    private static Optional<JsonObject> read(Path folder) throws IOException {
        try {
            String text = Files.readString(folder.resolve(FILE)).strip();
            return text.isEmpty()
                    ? Optional.empty()
                    : Optional.of(JsonParser.parseString(text).getAsJsonObject());
        } catch (NoSuchFileException | JsonParseException | IllegalStateException e) {
            return Optional.empty(); // it is just being written
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
