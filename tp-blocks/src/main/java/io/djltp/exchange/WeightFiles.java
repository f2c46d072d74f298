package io.djltp.exchange;

import ai.djl.MalformedModelException;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonPrimitive;
import com.google.gson.annotations.SerializedName;

import io.djltp.head.Margin;
import io.djltp.internal.parameters.BlockWalk;
import io.djltp.internal.safetensors.SafetensorsFile;
import io.djltp.internal.safetensors.StoredTensor;
import io.djltp.nn.ClassificationHead;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.Closeable;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.Reader;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.Comparator;
import java.util.IdentityHashMap;
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
final class WeightFiles implements Closeable {

    private static final Logger logger = LoggerFactory.getLogger(WeightFiles.class);

    /** How the name of an index ends. */
    static final String INDEX = ".safetensors.index.json";

    /** How the files that are no indexes end. */
    static final String SUFFIX = ".safetensors";

    /**
     * What stands before the name of a tensor in the metadata of its file, as the key of the margin
     * that it was trained with, without which its logits are others: {@code margin.head.weight} is
     * {@code 64.0 1.0 0.5 0.0}, the scale, m1, m2 and m3.
     */
    static final String MARGIN = "margin.";

    private static final Gson GSON = new Gson();

    private static final String NO_INDEX =
            " is no index of safetensors files, with a weight_map in it";

    private static final int COMPARED = 1 << 20; // bytes at a time

    private final Path path;
    private final Map<Path, SafetensorsFile> files = new LinkedHashMap<>();
    private final Map<String, SafetensorsFile> tensors = new LinkedHashMap<>();
    private volatile boolean closed;

    private record Index(@SerializedName("weight_map") Map<String, String> map) {}

    private WeightFiles(Path path) {
        this.path = path;
    }

    /**
     * Opens the files of a model and reads their headers.
     *
     * @param path a safetensors file, an index, or a folder with one of them named {@code model}
     * @throws IOException if one is missing or is not what it should be
     */
    static WeightFiles open(Path path) throws IOException {
        Path first = Files.isDirectory(path) ? find(path) : path;
        if (!Files.exists(first)) {
            throw new FileNotFoundException(
                    ("There is no %s: setPath takes a safetensors file, an index, or a folder with"
                                    + " one of them named model")
                            .formatted(first.toAbsolutePath()));
        }
        WeightFiles opened = new WeightFiles(first);
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
                                        "There is neither model.safetensors nor model%s in %s"
                                                .formatted(INDEX, folder)));
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
     * Checks that nothing in a {@code config.json} of Hugging Face beside the files makes the
     * layers of this library compute something else.
     *
     * @throws MalformedModelException if rotary positions are scaled
     */
    void checkConfig() throws MalformedModelException, IOException {
        Path file = path.toAbsolutePath().resolveSibling("config.json");
        if (!Files.exists(file)) {
            return;
        }
        JsonObject config;
        try (Reader reader = Files.newBufferedReader(file)) {
            config = GSON.fromJson(reader, JsonObject.class);
        } catch (JsonParseException e) {
            return; // somebody else's
        }
        for (String name : List.of("rope_scaling", "rope_parameters")) {
            if (config.get(name) instanceof JsonObject rope && isScaled(rope)) {
                throw new MalformedModelException(
                        ("%s has %s %s, and RotaryEmbedding computes unscaled positions only: the"
                                        + " outputs would differ from those of the model. Take a"
                                        + " model without it, or remove it from config.json if"
                                        + " the network computes it in a block of its own")
                                .formatted(file, name, rope));
            }
        }
        boolean unused =
                config.get("use_sliding_window") instanceof JsonPrimitive used
                        && !used.getAsBoolean();
        if (config.get("sliding_window") instanceof JsonPrimitive window && !unused) {
            logger.warn(
                    "{} has sliding_window {}: attention here sees all tokens, so that outputs of"
                            + " more tokens differ from those of the model",
                    file,
                    window);
        }
    }

    private static boolean isScaled(JsonObject rope) {
        JsonElement type = rope.has("rope_type") ? rope.get("rope_type") : rope.get("type");
        return type instanceof JsonPrimitive name && !name.getAsString().equals("default");
    }

    /** Returns the margins of the heads of a tree, by their weights. */
    static Map<Parameter, Margin> margins(Block block) {
        Map<Parameter, Margin> margins = new IdentityHashMap<>();
        BlockWalk.of(
                block,
                (each, path, certain) -> {
                    if (each instanceof ClassificationHead head) {
                        margins.put(head.getDirectParameters().get("weight"), head.getMargin());
                    }
                });
        return margins;
    }

    /** Returns the note of a margin, {@code null} for none. */
    static @Nullable String note(@Nullable Margin margin) {
        return margin == null
                ? "no margin"
                : margin.scale() + " " + margin.m1() + " " + margin.m2() + " " + margin.m3();
    }

    /**
     * Returns the note of the margin that a tensor was trained with, or {@code null} if nothing is
     * noted: it has none, or is of another library.
     */
    @Nullable String note(String tensor) {
        return fileOf(tensor).getMetadata().get(MARGIN + tensor);
    }

    /** Returns the names of all tensors. */
    Iterable<String> names() {
        return Collections.unmodifiableSet(tensors.keySet());
    }

    /** Returns a tensor, or {@code null} if there is none of this name. */
    @Nullable StoredTensor get(String name) {
        SafetensorsFile file = tensors.get(name);
        return file == null ? null : file.getTensors().get(name);
    }

    /** Returns the file that has a tensor. */
    SafetensorsFile fileOf(String name) {
        checkOpen();

        return Objects.requireNonNull(tensors.get(name), name);
    }

    /** Refuses to read what has been closed. */
    void checkOpen() {
        if (closed) {
            throw new IllegalStateException(
                    ("The weights of %s are closed: close them after the model is initialized, by a"
                                    + " trainer, by its first prediction or by block.initialize")
                            .formatted(path));
        }
    }

    /** Returns whether two tensors have the same type, shape and bytes. */
    boolean areEqual(String one, String other) throws IOException {
        StoredTensor first = Objects.requireNonNull(get(one), one);
        StoredTensor second = Objects.requireNonNull(get(other), other);
        if (!first.type().equals(second.type()) || !first.shape().equals(second.shape())) {
            return false;
        }
        ByteBuffer here = ByteBuffer.allocate(COMPARED);
        ByteBuffer there = ByteBuffer.allocate(COMPARED);
        for (long at = 0; at < first.bytes(); at += COMPARED) {
            int count = (int) Math.min(COMPARED, first.bytes() - at);
            fileOf(one).read(first, at, here.clear().limit(count));
            fileOf(other).read(second, at, there.clear().limit(count));
            if (!here.flip().equals(there.flip())) {
                return false;
            }
        }
        return true;
    }

    /** Returns how many bytes of tensors were read so far. */
    long getBytesRead() {
        return files.values().stream().mapToLong(SafetensorsFile::getBytesRead).sum();
    }

    @Override
    public void close() throws IOException {
        closed = true;
        for (SafetensorsFile file : files.values()) {
            file.close();
        }
    }

    @Override
    public String toString() {
        return path.toString();
    }
}
