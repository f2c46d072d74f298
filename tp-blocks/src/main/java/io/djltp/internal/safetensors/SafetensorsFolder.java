package io.djltp.internal.safetensors;

import com.google.gson.Gson;
import com.google.gson.JsonParseException;
import com.google.gson.annotations.SerializedName;

import org.jspecify.annotations.Nullable;

import java.io.Closeable;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.stream.Stream;

/**
 * The tensors of a model in one safetensors file, or in several with an index, as Hugging Face
 * writes them: {@code model.safetensors}, or {@code model-00001-of-00002.safetensors} and so on
 * with {@code model.safetensors.index.json}.
 */
public final class SafetensorsFolder implements Closeable {

    /** How the name of an index ends. */
    public static final String INDEX = ".safetensors.index.json";

    /** How the files that are no indexes end. */
    public static final String SUFFIX = ".safetensors";

    private static final Gson GSON = new Gson();

    private static final String NO_INDEX =
            " is no index of safetensors files, with a weight_map in it";

    private final Path path;
    private final Map<Path, SafetensorsFile> files = new LinkedHashMap<>();
    private final Map<String, SafetensorsFile> tensors = new LinkedHashMap<>();
    private volatile boolean closed;

    private record Index(@SerializedName("weight_map") Map<String, String> map) {}

    private SafetensorsFolder(Path path) {
        this.path = path;
    }

    /**
     * Opens the files of a model and reads their headers.
     *
     * @param path a safetensors file, an index, or a folder with one of them named {@code model}
     * @return the files, open
     * @throws IOException if one is missing or is not what it should be
     */
    public static SafetensorsFolder open(Path path) throws IOException {
        Path first = Files.isDirectory(path) ? find(path) : path;
        if (!Files.exists(first)) {
            throw new FileNotFoundException(
                    ("There is no %s: setPath takes a safetensors file, an index, or a folder with"
                                    + " one of them named model")
                            .formatted(first.toAbsolutePath()));
        }
        SafetensorsFolder opened = new SafetensorsFolder(first);
        try {
            if (first.getFileName().toString().endsWith(".json")) {
                opened.readIndex();
            } else {
                SafetensorsFile file = SafetensorsFile.open(first);
                opened.files.put(first, file);
                file.getTensors().keySet().forEach(name -> opened.tensors.put(name, file));
            }
            return opened;
        } catch (IOException | RuntimeException e) {
            opened.close();
            throw e;
        }
    }

    /** Of both, the newer counts: an export may have been stopped before it removed the other. */
    private static Path find(Path folder) throws IOException {
        return Stream.of("model" + SUFFIX, "model" + INDEX)
                .map(folder::resolve)
                .filter(Files::exists)
                .max(Comparator.comparing(file -> file.toFile().lastModified()))
                .orElseThrow(
                        () ->
                                new FileNotFoundException(
                                        "There is neither model.safetensors nor model%s in %s%s"
                                                .formatted(INDEX, folder, others(folder))));
    }

    /** Says what to do with the weights of other formats, or half of them, that a folder has. */
    private static String others(Path folder) {
        String[] names = folder.toFile().list();
        List<String> found =
                Stream.of(names == null ? new String[0] : names)
                        .filter(name -> name.matches(".*\\.(bin|pt|pth|gguf|incomplete|part)"))
                        .sorted()
                        .toList();
        if (found.isEmpty()) {
            return "";
        }
        return found.stream().anyMatch(name -> name.matches(".*\\.(incomplete|part)"))
                ? ", only " + found + ", which is not complete: download the folder again"
                : ", only %s. Only safetensors are read: download them, or write them in Python by"
                                .formatted(found)
                        + " AutoModel.from_pretrained(folder).save_pretrained(folder) of"
                        + " transformers";
    }

    private void readIndex() throws IOException {
        Map<String, String> map;
        try (Reader reader = Files.newBufferedReader(path)) {
            Index index = GSON.fromJson(reader, Index.class);
            map = index == null ? null : index.map;
        } catch (JsonParseException e) {
            throw new IOException(path + NO_INDEX, e);
        }
        if (map == null || map.containsValue(null)) {
            throw new IOException(path + NO_INDEX);
        }
        Set<String> missing = new LinkedHashSet<>();
        for (Map.Entry<String, String> entry : map.entrySet()) {
            Path file = path.resolveSibling(entry.getValue());
            if (!files.containsKey(file) && Files.exists(file)) {
                files.put(file, SafetensorsFile.open(file));
            }
            SafetensorsFile opened = files.get(file);
            if (opened == null) {
                missing.add(entry.getValue());
            } else if (!opened.getTensors().containsKey(entry.getKey())) {
                missing.add(entry.getKey() + " of " + entry.getValue());
            }
            tensors.put(entry.getKey(), opened);
        }
        if (!missing.isEmpty()) {
            throw new IOException(path + " names what is not there: " + missing);
        }
    }

    /**
     * Returns the file with the tensors, or with their index.
     *
     * @return the file that was opened first
     */
    public Path getPath() {
        return path;
    }

    /**
     * Returns the names of all tensors.
     *
     * @return the names
     */
    public Set<String> getNames() {
        return Collections.unmodifiableSet(tensors.keySet());
    }

    /**
     * Returns a tensor.
     *
     * @param name its name
     * @return the tensor, or {@code null} if there is none of this name
     */
    public @Nullable StoredTensor get(String name) {
        SafetensorsFile file = tensors.get(name);
        return file == null ? null : file.getTensors().get(name);
    }

    /**
     * Returns the file that has a tensor.
     *
     * @param name its name
     * @return the file
     * @throws NullPointerException if there is no tensor of this name
     */
    public SafetensorsFile fileOf(String name) {
        return Objects.requireNonNull(tensors.get(name), name);
    }

    /**
     * Returns whether the files have been closed.
     *
     * @return whether they are closed
     */
    public boolean isClosed() {
        return closed;
    }

    /**
     * Returns how many bytes of tensors were read so far.
     *
     * @return the number of bytes
     */
    public long getBytesRead() {
        return files.values().stream().mapToLong(SafetensorsFile::getBytesRead).sum();
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws IOException {
        closed = true;
        for (SafetensorsFile file : files.values()) {
            file.close();
        }
    }

    /** Returns the file. */
    @Override
    public String toString() {
        return path.toString();
    }
}
