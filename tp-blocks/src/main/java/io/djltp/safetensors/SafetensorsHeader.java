package io.djltp.safetensors;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;
import com.google.gson.Strictness;
import com.google.gson.stream.JsonReader;
import com.google.gson.stream.MalformedJsonException;

import java.io.EOFException;
import java.io.IOException;
import java.io.StringReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * What a safetensors file begins with: eight bytes with the length n of the header, little-endian,
 * then n bytes of JSON, one member a tensor with {@code dtype}, {@code shape} and {@code
 * data_offsets}, and {@code __metadata__} with strings. The bytes of the tensors follow in
 * row-major order, little-endian, without gaps (<a
 * href="https://github.com/huggingface/safetensors">Hugging Face, format of safetensors</a>).
 */
final class SafetensorsHeader {

    /** The bytes of the length. */
    static final int PREFIX = 8;

    /** The longest header that the format allows, so that a broken file is not read as one. */
    static final long LIMIT = 100_000_000;

    /** What the place of the first tensor is a multiple of. */
    static final int ALIGNMENT = 8;

    private final Map<String, StoredTensor> tensors; // in the order of their bytes
    private final Map<String, String> metadata;

    private SafetensorsHeader(List<StoredTensor> tensors, Map<String, String> metadata) {
        this.tensors = new LinkedHashMap<>();
        for (StoredTensor tensor : tensors) {
            if (this.tensors.put(tensor.name(), tensor) != null) {
                throw new IllegalArgumentException("Two tensors are named " + tensor.name());
            }
        }
        this.metadata = Map.copyOf(metadata);
    }

    /**
     * Lays tensors out one after another.
     *
     * @param types the data type of each tensor, in the order in which it will be written
     * @param shapes the shape of each
     * @param metadata what else the file says
     */
    static SafetensorsHeader layOut(
            Map<String, DataType> types, Map<String, Shape> shapes, Map<String, String> metadata) {
        List<StoredTensor> tensors = new ArrayList<>();
        long at = 0;
        for (Map.Entry<String, DataType> entry : types.entrySet()) {
            String name = entry.getKey();
            String type = entry.getValue().asSafetensors();
            StoredTensor tensor = new StoredTensor(name, type, shapes.get(name), at);
            tensors.add(tensor);
            at += tensor.bytes();
        }
        return new SafetensorsHeader(tensors, metadata);
    }

    /**
     * Reads a header.
     *
     * @param json the JSON, without the length before it
     * @param dataBytes how many bytes the file has behind the header
     * @throws IOException if it is no header, or does not describe these bytes without gaps
     */
    static SafetensorsHeader parse(byte[] json, long dataBytes) throws IOException {
        List<StoredTensor> tensors = new ArrayList<>();
        Map<String, String> metadata = new LinkedHashMap<>();
        String at = "its beginning";
        try (JsonReader reader =
                new JsonReader(new StringReader(new String(json, StandardCharsets.UTF_8)))) {
            reader.setStrictness(Strictness.STRICT);
            reader.beginObject();
            while (reader.hasNext()) {
                String name = reader.nextName();
                at = name;
                JsonElement value = JsonParser.parseReader(reader);
                if ("__metadata__".equals(name)) {
                    value.getAsJsonObject()
                            .entrySet()
                            .forEach(e -> metadata.put(e.getKey(), e.getValue().getAsString()));
                } else {
                    tensors.add(tensor(name, value.getAsJsonObject()));
                }
            }
            reader.endObject();
            reader.peek(); // fails if there is anything but spaces
            tensors.sort(
                    Comparator.comparingLong(StoredTensor::begin)
                            .thenComparingLong(StoredTensor::bytes));
            checkNoGaps(tensors, dataBytes);
            return new SafetensorsHeader(tensors, metadata);
        } catch (JsonParseException | MalformedJsonException | EOFException e) {
            throw new IOException("its header is no JSON, at " + at, e);
        } catch (NumberFormatException
                | ArithmeticException
                | IllegalStateException
                | UnsupportedOperationException
                | ClassCastException e) {
            throw new IOException("its header has something of another kind at " + at, e);
        } catch (IllegalArgumentException e) {
            throw new IOException(e.getMessage(), e);
        }
    }

    private static StoredTensor tensor(String name, JsonObject json) throws IOException {
        for (String key : List.of("dtype", "shape", "data_offsets")) {
            if (!json.has(key)) {
                throw new IOException("tensor " + name + " has no " + key);
            }
        }
        JsonArray lengths = json.getAsJsonArray("shape");
        long[] shape = new long[lengths.size()];
        for (int i = 0; i < shape.length; i++) {
            shape[i] = whole(lengths.get(i));
            if (shape[i] < 0) {
                throw new IOException("tensor " + name + " has a negative length: " + lengths);
            }
        }
        JsonArray offsets = json.getAsJsonArray("data_offsets");
        if (offsets.size() != 2) {
            throw new IOException("data_offsets of tensor " + name + " are not two numbers");
        }
        long begin = whole(offsets.get(0));
        StoredTensor tensor =
                new StoredTensor(name, json.get("dtype").getAsString(), new Shape(shape), begin);
        if (whole(offsets.get(1)) - begin != tensor.bytes()) {
            throw new IOException(
                    String.format(
                            "tensor %s %s %s has the bytes %s, which are not its %d",
                            name, tensor.type(), tensor.shape(), offsets, tensor.bytes()));
        }
        return tensor;
    }

    /** Returns a whole number as such, where Gson would round it, or take it from a text. */
    private static long whole(JsonElement element) {
        if (!element.getAsJsonPrimitive().isNumber()) {
            throw new NumberFormatException(element + " is no number");
        }
        return element.getAsBigDecimal().longValueExact();
    }

    private static void checkNoGaps(List<StoredTensor> tensors, long dataBytes) throws IOException {
        long at = 0;
        for (StoredTensor tensor : tensors) {
            if (tensor.begin() != at) {
                throw new IOException(
                        String.format(
                                "tensor %s begins at byte %d and not at %d, where the one before"
                                        + " ends",
                                tensor.name(), tensor.begin(), at));
            }
            at += tensor.bytes();
        }
        if (at != dataBytes) {
            throw new IOException(
                    String.format(
                            "its tensors have %d bytes, and the file has %d for them",
                            at, dataBytes));
        }
    }

    /** Returns the header as it stands in a file, the length before it included. */
    ByteBuffer encode() {
        JsonObject json = new JsonObject();
        if (!metadata.isEmpty()) {
            JsonObject texts = new JsonObject();
            metadata.entrySet().stream()
                    .sorted(Map.Entry.comparingByKey())
                    .forEach(e -> texts.addProperty(e.getKey(), e.getValue()));
            json.add("__metadata__", texts);
        }
        for (StoredTensor tensor : tensors.values()) {
            JsonArray shape = new JsonArray();
            for (long length : tensor.shape().getShape()) {
                shape.add(length);
            }
            JsonArray offsets = new JsonArray();
            offsets.add(tensor.begin());
            offsets.add(tensor.begin() + tensor.bytes());
            JsonObject entry = new JsonObject();
            entry.addProperty("dtype", tensor.type());
            entry.add("shape", shape);
            entry.add("data_offsets", offsets);
            json.add(tensor.name(), entry);
        }
        byte[] text = json.toString().getBytes(StandardCharsets.UTF_8);
        int length = text.length + Math.floorMod(-PREFIX - text.length, ALIGNMENT);
        ByteBuffer header = ByteBuffer.allocate(PREFIX + length).order(ByteOrder.LITTLE_ENDIAN);
        header.putLong(length).put(text);
        while (header.hasRemaining()) {
            header.put((byte) ' ');
        }
        return header.flip();
    }

    /** Returns the tensors by name, in the order of their bytes. */
    Map<String, StoredTensor> getTensors() {
        return tensors;
    }

    /** Returns what else the file says. */
    Map<String, String> getMetadata() {
        return metadata;
    }
}
