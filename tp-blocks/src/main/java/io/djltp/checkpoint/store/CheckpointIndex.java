package io.djltp.checkpoint.store;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.annotations.SerializedName;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.job.LibraryVersion;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeSet;
import java.util.zip.CRC32C;

/**
 * What is in a checkpoint, and where: the file {@code index.json}, and beside it its SHA-256 as
 * {@code sha256sum} writes it.
 *
 * @param step the step after which it was taken
 * @param mesh the ranks of the run that wrote it, for people to read
 * @param files the files of tensors, one a part
 * @param tensors the tensors by name, in the order in which they lie in the parts
 * @param values what else it holds
 */
record CheckpointIndex(
        long step,
        String mesh,
        List<Part> files,
        Map<String, CutTensor> tensors,
        JsonObject values) {

    static final String FILE = "index.json";
    static final String CHECKSUM_FILE = FILE + ".sha256";

    /**
     * The name of {@link #checksumOfRanges} in the metadata of a part; one that an older version
     * has written has none.
     */
    static final String RANGES = "ranges";

    private static final String FORMAT = "djl-tensor-parallel checkpoint";
    private static final int VERSION = 1;

    private static final Gson GSON = new Gson();
    private static final Gson GSON_OF_VALUES =
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

    /** A tensor; {@code ranges} are the ranges along the axis in each part, from begin to end. */
    private record TensorJson(
            String name, String dtype, long[] shape, Integer axis, long[][][] ranges) {

        static TensorJson of(CutTensor tensor) {
            String type = tensor.type().asSafetensors();
            long[] shape = tensor.shape().getShape();
            return tensor.isWhole()
                    ? new TensorJson(tensor.name(), type, shape, null, null)
                    : new TensorJson(
                            tensor.name(), type, shape, tensor.axis(), ranges(tensor.cut()));
        }

        private static long[][][] ranges(Cut cut) {
            long[][][] ranges = new long[cut.getRanks()][][];
            for (int part = 0; part < ranges.length; part++) {
                ranges[part] =
                        cut.getRanges(part).stream()
                                .map(range -> new long[] {range.start(), range.end()})
                                .toArray(long[][]::new);
            }
            return ranges;
        }

        CutTensor toTensor() {
            DataType type = DataType.fromSafetensors(dtype);
            if (axis == null) {
                return CutTensor.whole(name, type, new Shape(shape));
            }
            List<List<ShardRange>> parts = new ArrayList<>();
            for (long[][] part : ranges) {
                parts.add(
                        Arrays.stream(part)
                                .map(range -> new ShardRange(range[0], range[1] - range[0]))
                                .toList());
            }
            Cut cut = Cut.of(shape[axis], parts.size(), parts::get);
            return new CutTensor(name, type, new Shape(shape), axis, cut);
        }
    }

    /**
     * A file of tensors. The process that wrote it tells that of rank 0 in the same words, in a
     * file of its own.
     *
     * @param file the name of the file
     * @param bytes its length
     * @param blockBytes the length of what has a checksum
     * @param crc32c the checksums
     */
    record Part(
            String file,
            Long bytes,
            @SerializedName("block_bytes") Integer blockBytes,
            String crc32c) {

        Part(String file, BlockChecksums checksums) {
            this(file, checksums.size(), BlockChecksums.BLOCK, checksums.encode());
        }

        BlockChecksums checksums() {
            return BlockChecksums.decode(bytes, crc32c);
        }

        private Part checked() throws CheckpointException {
            if (blockBytes != BlockChecksums.BLOCK) {
                throw new CheckpointException(
                        "its checksums are those of " + blockBytes + " bytes");
            }
            Objects.requireNonNull(file);
            checksums(); // throws
            return this;
        }

        byte[] encode() {
            return (GSON.toJson(this) + "\n").getBytes(StandardCharsets.UTF_8);
        }

        static Part decode(byte[] text) throws CheckpointException {
            try {
                return GSON.fromJson(new String(text, StandardCharsets.UTF_8), Part.class)
                        .checked();
            } catch (RuntimeException e) {
                throw new CheckpointException("it does not describe a file: " + e.getMessage(), e);
            }
        }
    }

    /** Writes the index into the folder of a checkpoint. */
    void write(Path folder) throws IOException {
        JsonElement json =
                GSON.toJsonTree(
                        new Json(
                                FORMAT,
                                VERSION,
                                LibraryVersion.get(),
                                step,
                                mesh,
                                files,
                                tensors.values().stream().map(TensorJson::of).toList(),
                                null));
        json.getAsJsonObject().add("values", values);
        byte[] bytes = (GSON_OF_VALUES.toJson(json) + "\n").getBytes(StandardCharsets.UTF_8);
        DurableFiles.write(folder.resolve(FILE), bytes);
        DurableFiles.write(folder.resolve(CHECKSUM_FILE), sum(bytes));
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
                    "its format is '" + json.format + "', not '" + FORMAT + "'");
        }
        String own = LibraryVersion.get();
        if (json.version != VERSION || !reads(own, json.library)) {
            throw new CheckpointException(
                    String.format(
                            "it was written by version %s of this library in version %d of the"
                                    + " format, and this is %s with %d: read it with that version",
                            json.library, json.version, own, VERSION));
        }
        for (Part each : json.files) {
            each.checked();
        }
        Map<String, CutTensor> tensors = new LinkedHashMap<>();
        for (TensorJson each : json.tensors) {
            CutTensor tensor = each.toTensor();
            if (!tensor.isWhole() && tensor.cut().getRanks() != json.files.size()) {
                throw new CheckpointException(
                        String.format(
                                "the ranges of tensor %s are of %d parts, and there are files of"
                                        + " %d",
                                tensor.name(), tensor.cut().getRanks(), json.files.size()));
            }
            if (tensors.put(tensor.name(), tensor) != null) {
                throw new CheckpointException("it has two tensors " + tensor.name());
            }
        }
        Objects.requireNonNull(json.mesh);
        Objects.requireNonNull(json.values);
        return new CheckpointIndex(json.step, json.mesh, json.files, tensors, json.values);
    }

    /**
     * Returns whether one version of this library reads the checkpoints of another. What is kept of
     * a weight may have another name in another version: only those with the same two first numbers
     * do.
     */
    static boolean reads(String own, String other) {
        return own.equals(LibraryVersion.DEVELOPMENT)
                || other.equals(LibraryVersion.DEVELOPMENT)
                || Arrays.equals(firstNumbers(own), firstNumbers(other));
    }

    private static String[] firstNumbers(String version) {
        return Arrays.copyOf(version.split("[.-]"), 2);
    }

    /**
     * Returns a checksum of which ranges of which tensors a part has. It is in the part, beside the
     * tensors themselves: an index in which two parts of one shape have traded places differs.
     *
     * @param tensors all tensors of the checkpoint
     * @param part the part
     * @return eight hexadecimal digits
     */
    static String checksumOfRanges(Collection<CutTensor> tensors, int part) {
        TreeSet<String> lines = new TreeSet<>(); // in an order that no process chooses
        for (CutTensor tensor : tensors) {
            StringBuilder text = new StringBuilder(tensor.name()).append(' ').append(tensor.axis());
            if (!tensor.isWhole()) {
                for (ShardRange range : tensor.cut().getRanges(part)) {
                    text.append(' ').append(range.start()).append(' ').append(range.end());
                }
            }
            lines.add(text.append('\n').toString());
        }
        CRC32C checksum = new CRC32C();
        lines.forEach(line -> checksum.update(line.getBytes(StandardCharsets.UTF_8)));
        return "%08x".formatted(checksum.getValue());
    }
}
