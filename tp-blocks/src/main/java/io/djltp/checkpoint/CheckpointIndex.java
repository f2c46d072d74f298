package io.djltp.checkpoint;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.annotations.SerializedName;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.LibraryVersion;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/**
 * What is in a checkpoint, and where: the file {@code index.json}, and beside it its SHA-256 as
 * {@code sha256sum} writes it.
 *
 * @param step the step after which it was taken
 * @param mesh the ranks of the run that wrote it, for people to read
 * @param parts the files of tensors
 * @param tensors the tensors by name, in the order in which they are in the parts
 * @param values what else it holds
 */
record CheckpointIndex(
        long step,
        String mesh,
        List<Part> parts,
        Map<String, CutTensor> tensors,
        JsonObject values) {

    static final String FILE = "index.json";
    static final String CHECKSUM_FILE = FILE + ".sha256";

    /** The bytes that have a checksum: what is read to check one byte. */
    static final int BLOCK = 1 << 18;

    private static final String FORMAT = "djl-tensor-parallel checkpoint";
    private static final int VERSION = 2;
    static final Gson GSON =
            new GsonBuilder().serializeNulls().serializeSpecialFloatingPointValues().create();

    /** The members of the file. */
    private record Json(
            String format,
            @SerializedName("format_version") Integer version,
            @SerializedName("library_version") String library,
            Long step,
            String mesh,
            List<Part> files,
            List<TensorJson> tensors,
            JsonObject values) {}

    /**
     * A file of tensors. The process that wrote it tells that of rank 0 in the same words.
     *
     * @param bytes its length
     * @param crc32c the CRC-32C (Castagnoli, RFC 3720) of each block; the last one may be shorter
     */
    record Part(long bytes, List<Integer> crc32c) {

        private Part checked() {
            if (bytes < 0 || crc32c.size() != (bytes + BLOCK - 1) / BLOCK) {
                throw new IllegalArgumentException(
                        "%s checksums are not those of %s bytes".formatted(crc32c.size(), bytes));
            }
            return this;
        }

        byte[] encode() {
            return GSON.toJson(this).getBytes(StandardCharsets.UTF_8);
        }

        static Part decode(byte[] text) {
            return GSON.fromJson(new String(text, StandardCharsets.UTF_8), Part.class).checked();
        }
    }

    /** A tensor; {@code ranges} are the ranges along the axis in each part, from begin to end. */
    private record TensorJson(
            String name,
            String dtype,
            long[] shape,
            @Nullable Integer axis,
            long @Nullable [][][] ranges) {

        static TensorJson of(CutTensor tensor) {
            Cut cut = tensor.cut();
            long[][][] ranges = cut == null ? null : new long[cut.getRanks()][][];
            for (int part = 0; cut != null && ranges != null && part < ranges.length; part++) {
                ranges[part] =
                        cut.getRanges(part).stream()
                                .map(range -> new long[] {range.start(), range.end()})
                                .toArray(long[][]::new);
            }
            return new TensorJson(
                    tensor.name(),
                    tensor.type().asSafetensors(),
                    tensor.shape().getShape(),
                    cut == null ? null : tensor.axis(),
                    ranges);
        }

        CutTensor toTensor() {
            DataType type = DataType.fromSafetensors(dtype);
            if (axis == null) {
                return CutTensor.whole(name, type, new Shape(shape));
            }
            long[][][] all = Objects.requireNonNull(ranges, "ranges");
            Cut cut = Cut.of(shape[axis], all.length, part -> ranges(all[part]));
            return new CutTensor(name, type, new Shape(shape), axis, cut);
        }

        private static List<ShardRange> ranges(long[][] ofPart) {
            return Arrays.stream(ofPart)
                    .map(range -> new ShardRange(range[0], range[1] - range[0]))
                    .toList();
        }
    }

    static JsonObject toJson(Record values) {
        return GSON.toJsonTree(values).getAsJsonObject();
    }

    /** Returns the name of the file of a part. */
    static String fileName(int part, int parts) {
        return "part-" + part + "-of-" + parts + ".safetensors";
    }

    /** Writes the index into the folder of a checkpoint. */
    void write(Path folder) throws IOException {
        List<TensorJson> shapes = tensors.values().stream().map(TensorJson::of).toList();
        String library = LibraryVersion.get();
        Json json = new Json(FORMAT, VERSION, library, step, mesh, parts, shapes, values);
        byte[] bytes = (GSON.toJson(json) + "\n").getBytes(StandardCharsets.UTF_8);
        CheckpointFolder.write(folder.resolve(FILE), bytes);
        CheckpointFolder.write(folder.resolve(CHECKSUM_FILE), sum(bytes));
    }

    private static byte[] sum(byte[] bytes) {
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(bytes);
            String line = HexFormat.of().formatHex(digest) + "  " + FILE + "\n";
            return line.getBytes(StandardCharsets.UTF_8);
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e); // every Java has it
        }
    }

    /**
     * Reads the index of a checkpoint.
     *
     * @param folder the folder of the checkpoint
     * @throws CheckpointException if it is damaged, or of another format or version
     */
    static CheckpointIndex read(Path folder) throws IOException {
        Path file = folder.resolve(FILE);
        byte[] bytes = bytes(file);
        if (!Arrays.equals(bytes(folder.resolve(CHECKSUM_FILE)), sum(bytes))) {
            throw new CheckpointException(
                    String.format(
                            "%s, bytes 0 to %d: its SHA-256 is not the one in %s: one of the two"
                                    + " is damaged",
                            file, bytes.length, CHECKSUM_FILE));
        }
        try {
            return of(GSON.fromJson(new String(bytes, StandardCharsets.UTF_8), Json.class));
        } catch (CheckpointException e) {
            throw new CheckpointException(file + " cannot be used: " + e.getMessage(), e);
        } catch (RuntimeException e) {
            String what =
                    e instanceof JsonParseException && e.getCause() instanceof IOException
                            ? "it is no JSON"
                            : "a member is missing, or of another kind than this library writes";
            throw new CheckpointException(file + " cannot be used: it is not an index: " + what, e);
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

    private static CheckpointIndex of(Json json) throws CheckpointException {
        if (!json.format.equals(FORMAT)) {
            throw new CheckpointException(
                    "its format is '%s', not '%s'".formatted(json.format, FORMAT));
        }
        if (json.version != VERSION) {
            throw new CheckpointException(
                    String.format(
                            "version %s of this library wrote it in version %d of the format, and"
                                    + " this is %s with %d: read it with that version",
                            json.library, json.version, LibraryVersion.get(), VERSION));
        }
        json.files.forEach(Part::checked);
        Map<String, CutTensor> tensors = new LinkedHashMap<>();
        for (TensorJson each : json.tensors) {
            CutTensor tensor = each.toTensor();
            Cut cut = tensor.cut();
            if (cut != null && cut.getRanks() != json.files.size()) {
                throw new CheckpointException(
                        String.format(
                                "the ranges of tensor %s are of %d parts, and there are files of"
                                        + " %d",
                                tensor.name(), cut.getRanks(), json.files.size()));
            }
            tensors.put(tensor.name(), tensor);
        }
        Objects.requireNonNull(json.mesh);
        Objects.requireNonNull(json.values);
        return new CheckpointIndex(json.step, json.mesh, json.files, tensors, json.values);
    }
}
