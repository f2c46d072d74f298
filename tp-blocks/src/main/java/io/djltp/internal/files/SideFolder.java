package io.djltp.internal.files;

import ai.djl.util.Utils;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * A folder within the one that files are for. What is written there takes its place when it is
 * complete, each file at once instead of the one that was there before; what is not complete never
 * does.
 *
 * <pre>{@code
 * try (SideFolder side = SideFolder.in(folder)) {
 *     Files.writeString(side.resolve("a.txt"), text);
 *     side.replace();
 * }
 * }</pre>
 */
public final class SideFolder implements AutoCloseable {

    private final Path folder;
    private final Path side;

    private SideFolder(Path folder, Path side) {
        this.folder = folder;
        this.side = side;
    }

    /**
     * Makes a folder at the side, with a name that no other has.
     *
     * @param folder the folder that the files are for
     * @return the folder at the side
     * @throws IOException if it cannot be made, as where there is no folder that the files are for
     */
    public static SideFolder in(Path folder) throws IOException {
        return new SideFolder(folder, Files.createTempDirectory(folder, ".writing-"));
    }

    /**
     * Returns this folder.
     *
     * @return the folder at the side
     */
    public Path getPath() {
        return side;
    }

    /**
     * Returns where a file is written.
     *
     * @param name its name
     * @return its path at the side
     */
    public Path resolve(String name) {
        return side.resolve(name);
    }

    /**
     * Moves everything into its place, in the order of the names.
     *
     * @return the names
     * @throws IOException if something cannot be moved: what stands before it has been replaced
     */
    public List<String> replace() throws IOException {
        return replace("");
    }

    /**
     * Moves everything into its place.
     *
     * @param last the name of what is moved last, because whoever finds it takes the rest to be
     *     there
     * @return the names, in the order in which they were moved
     * @throws IOException if something cannot be moved: what stands before it has been replaced
     */
    public List<String> replace(String last) throws IOException {
        List<String> names = new ArrayList<>();
        for (Path file : list(last)) {
            Files.move(
                    file,
                    folder.resolve(file.getFileName()),
                    StandardCopyOption.ATOMIC_MOVE,
                    StandardCopyOption.REPLACE_EXISTING);
            names.add(file.getFileName().toString());
        }
        return names;
    }

    private List<Path> list(String last) throws IOException {
        try (Stream<Path> files = Files.list(side)) {
            return files.sorted(
                            Comparator.comparing((Path file) -> file.endsWith(last))
                                    .thenComparing(Comparator.naturalOrder()))
                    .collect(Collectors.toList());
        }
    }

    /**
     * Returns what to throw for a file that could not be written: a full disk is told without a
     * path by the system.
     *
     * @param folder the folder that the files are for
     * @param thrown what was thrown
     * @return the same, or one that names the folder
     */
    public static IOException explained(Path folder, IOException thrown) {
        return String.valueOf(thrown.getMessage()).contains(folder.toString())
                ? thrown
                : new IOException("Cannot write to " + folder + ": " + thrown.getMessage(), thrown);
    }

    /** Writes the files of a folder that is empty. */
    public interface Writer {

        /**
         * Writes the files.
         *
         * @param folder the folder
         * @throws IOException if one cannot be written
         */
        void write(Path folder) throws IOException;
    }

    /**
     * Returns a folder in DJL's cache, which is written if it is not there.
     *
     * @param name its name
     * @param writer writes it
     * @return the folder
     * @throws IOException if it cannot be written
     */
    public static Path cached(String name, Writer writer) throws IOException {
        Path cache = Files.createDirectories(Utils.getCacheDir().resolve("djltp"));
        Path folder = cache.resolve(name);
        if (Files.isDirectory(folder)) {
            return folder;
        }
        try (SideFolder side = in(cache)) {
            writer.write(Files.createDirectory(side.resolve(name)));
            side.replace();
        } catch (IOException e) {
            if (!Files.isDirectory(folder)) { // else another process was faster
                throw e;
            }
        }
        return folder;
    }

    /** Removes the folder at the side, with what has not been moved. */
    @Override
    public void close() {
        Utils.deleteQuietly(side);
    }
}
