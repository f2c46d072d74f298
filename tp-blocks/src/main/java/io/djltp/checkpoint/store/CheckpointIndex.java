package io.djltp.checkpoint.store;

import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;

import io.djltp.job.LibraryVersion;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/**
 * What is in a checkpoint, and where: the file {@code index.json}.
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
        List<IndexedPart> files,
        Map<String, CutTensor> tensors,
        JsonObject values) {

    private static final String FORMAT = "djl-tensor-parallel checkpoint";
    private static final int VERSION = 1;

    /** Returns the index as it stands in the file. */
    byte[] encode() {
        JsonObject json = new JsonObject();
        json.addProperty("format", FORMAT);
        json.addProperty("format_version", VERSION);
        json.addProperty("library_version", LibraryVersion.get());
        json.addProperty("step", step);
        json.addProperty("mesh", mesh);
        json.add("files", array(files.stream().map(IndexedPart::toJson).toList()));
        json.add("tensors", array(tensors.values().stream().map(CutJson::toJson).toList()));
        json.add("values", values);
        String text =
                new GsonBuilder()
                        .serializeNulls()
                        .serializeSpecialFloatingPointValues()
                        .create()
                        .toJson(json);
        return (text + "\n").getBytes(StandardCharsets.UTF_8);
    }

    private static JsonArray array(Collection<? extends JsonElement> elements) {
        JsonArray array = new JsonArray();
        elements.forEach(array::add);
        return array;
    }

    /**
     * Reads an index.
     *
     * @param bytes the file, whose checksum is right
     * @throws CheckpointException if it is that of another format or version
     */
    static CheckpointIndex decode(byte[] bytes) throws CheckpointException {
        try {
            JsonObject json =
                    JsonParser.parseString(new String(bytes, StandardCharsets.UTF_8))
                            .getAsJsonObject();
            checkVersion(json);
            List<IndexedPart> files = new ArrayList<>();
            for (JsonElement each : json.getAsJsonArray("files")) {
                files.add(IndexedPart.of(each.getAsJsonObject()));
            }
            Map<String, CutTensor> tensors = new LinkedHashMap<>();
            for (JsonElement each : json.getAsJsonArray("tensors")) {
                CutTensor tensor = CutJson.of(each.getAsJsonObject());
                checkParts(tensor, files.size());
                if (tensors.put(tensor.name(), tensor) != null) {
                    throw new CheckpointException("it has two tensors " + tensor.name());
                }
            }
            return new CheckpointIndex(
                    json.get("step").getAsLong(),
                    json.get("mesh").getAsString(),
                    files,
                    tensors,
                    Objects.requireNonNull(json.getAsJsonObject("values")));
        } catch (JsonParseException e) {
            throw new CheckpointException("it is not an index: it is no JSON", e);
        } catch (RuntimeException e) {
            throw new CheckpointException(
                    "it is not an index: a member is missing, or of another kind than this library"
                            + " writes",
                    e);
        }
    }

    private static void checkParts(CutTensor tensor, int parts) throws CheckpointException {
        if (!tensor.isWhole() && tensor.cut().getRanks() != parts) {
            throw new CheckpointException(
                    String.format(
                            "the ranges of tensor %s are of %d parts, and there are files of %d",
                            tensor.name(), tensor.cut().getRanks(), parts));
        }
    }

    private static void checkVersion(JsonObject json) throws CheckpointException {
        String format = json.get("format").getAsString();
        if (!format.equals(FORMAT)) {
            throw new CheckpointException("its format is '" + format + "', not '" + FORMAT + "'");
        }
        int version = json.get("format_version").getAsInt();
        String own = LibraryVersion.get();
        String writer = json.get("library_version").getAsString();
        if (version != VERSION || !ReadableVersions.reads(own, writer)) {
            throw new CheckpointException(
                    String.format(
                            "it was written by version %s of this library in version %d of the"
                                    + " format, and this is %s with %d: read it with that version",
                            writer, version, own, VERSION));
        }
    }
}
