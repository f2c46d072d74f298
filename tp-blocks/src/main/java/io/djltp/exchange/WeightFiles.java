package io.djltp.exchange;

import ai.djl.MalformedModelException;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonPrimitive;

import io.djltp.head.Margin;
import io.djltp.internal.Errors;
import io.djltp.internal.parameters.BlockWalk;
import io.djltp.internal.safetensors.SafetensorsFile;
import io.djltp.internal.safetensors.SafetensorsFolder;
import io.djltp.internal.safetensors.StoredTensor;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.attention.RotaryScaling;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.Closeable;
import java.io.IOException;
import java.io.Reader;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/** The tensors of a model, and what their files and the configuration beside them say of it. */
final class WeightFiles implements Closeable {

    private static final Logger logger = LoggerFactory.getLogger(WeightFiles.class);

    /**
     * What stands before the name of a tensor in the metadata of its file, as the key of the margin
     * that it was trained with, without which its logits are others: {@code margin.head.weight} is
     * {@code 64.0 1.0 0.5 0.0}, the scale, m1, m2 and m3.
     */
    static final String MARGIN = "margin.";

    private static final Gson GSON = new Gson();

    private static final int COMPARED = 1 << 20; // bytes at a time

    private final SafetensorsFolder files;

    private WeightFiles(SafetensorsFolder files) {
        this.files = files;
    }

    /** Opens the files of a model and reads their headers. */
    static WeightFiles open(Path path) throws IOException {
        return new WeightFiles(SafetensorsFolder.open(path));
    }

    /**
     * Checks that nothing in a {@code config.json} of Hugging Face beside the files makes the
     * layers of this library compute something else.
     *
     * @throws MalformedModelException if rotary positions are scaled otherwise than those of a tree
     */
    void checkConfig(Block block) throws MalformedModelException, IOException {
        Path file = files.getPath().toAbsolutePath().resolveSibling("config.json");
        if (!Files.exists(file)) {
            return;
        }
        JsonObject config;
        try (Reader reader = Files.newBufferedReader(file)) {
            config = GSON.fromJson(reader, JsonObject.class);
        } catch (JsonParseException e) {
            return; // somebody else's
        }
        List<ParallelMultiHeadAttention> layers = new ArrayList<>();
        BlockWalk.of(
                block,
                (each, path, certain) -> {
                    if (each instanceof ParallelMultiHeadAttention attention) {
                        layers.add(attention);
                    }
                });
        for (String name : List.of("rope_scaling", "rope_parameters")) {
            if (config.get(name) instanceof JsonObject rope && isScaled(rope)) {
                checkScaling(file, name, config, layers);
            }
        }
        boolean unused =
                config.get("use_sliding_window") instanceof JsonPrimitive used
                        && !used.getAsBoolean();
        int longest = count(config, "max_position_embeddings");
        unused |= longest > 0 && longest <= count(config, "sliding_window");
        boolean known = layers.stream().anyMatch(layer -> layer.getWindow() > 0);
        if (config.get("sliding_window") instanceof JsonPrimitive window && !unused && !known) {
            logger.warn(
                    "{} has sliding_window {}: attention here sees all tokens, so that outputs of"
                            + " more tokens differ from those of the model. Build it with"
                            + " optWindow({})",
                    file,
                    window,
                    window);
        }
    }

    private static boolean isScaled(JsonObject rope) {
        JsonElement type = rope.has("rope_type") ? rope.get("rope_type") : rope.get("type");
        return type instanceof JsonPrimitive name && !name.getAsString().equals("default");
    }

    private static int count(JsonObject config, String name) {
        return config.get(name) instanceof JsonPrimitive number ? number.getAsInt() : 0;
    }

    private static void checkScaling(
            Path file, String name, JsonObject config, List<ParallelMultiHeadAttention> layers)
            throws MalformedModelException {
        String rope = config.get(name).toString();
        String found = "has no ParallelMultiHeadAttention with rotary positions";
        try {
            RotaryScaling wanted =
                    RotaryScaling.parse(
                            rope,
                            count(config, "max_position_embeddings"),
                            count(config, "original_max_position_embeddings"));
            boolean fits = false;
            for (ParallelMultiHeadAttention layer : layers) {
                if (layer.getRotary() != null) {
                    RotaryScaling own = layer.getRotary().getScaling();
                    found = own == null ? "does not scale them" : "scales them by " + own;
                    fits = Objects.equals(wanted, own);
                    if (!fits) {
                        break;
                    }
                }
            }
            if (fits) {
                return;
            }
        } catch (IllegalArgumentException | UnsupportedOperationException e) {
            found = "does not know it: " + e.getMessage();
        }
        throw new MalformedModelException(
                ("%s has %s %s, and the model %s: the outputs would differ. Build its"
                                + " RotaryEmbedding with optScaling(RotaryScaling.parse(...)), or remove"
                                + " it from config.json if the network computes it in a block of its"
                                + " own")
                        .formatted(file, name, rope, found));
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

    /** Returns the note of a margin; none is not noted in files. */
    static String note(@Nullable Margin margin) {
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
        return files.getNames();
    }

    /** Returns a tensor, or {@code null} if there is none of this name. */
    @Nullable StoredTensor get(String name) {
        return files.get(name);
    }

    /** Returns the file that has a tensor. */
    SafetensorsFile fileOf(String name) {
        checkOpen();
        return files.fileOf(name);
    }

    /** Refuses to read what has been closed. */
    void checkOpen() {
        Errors.checkState(
                !files.isClosed(),
                "The weights of %s are closed: close them after the model is initialized, by a"
                        + " trainer, by its first prediction or by block.initialize",
                files);
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
        return files.getBytesRead();
    }

    @Override
    public void close() throws IOException {
        files.close();
    }

    @Override
    public String toString() {
        return files.toString();
    }
}
