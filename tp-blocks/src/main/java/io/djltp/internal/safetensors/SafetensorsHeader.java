package io.djltp.internal.safetensors;

import ai.djl.ndarray.types.Shape;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;
import com.google.gson.Strictness;
import com.google.gson.annotations.SerializedName;
import com.google.gson.stream.JsonReader;
import com.google.gson.stream.MalformedJsonException;

import java.io.EOFException;
import java.io.IOException;
import java.io.StringReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

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

    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().create();

    private final Map<String, StoredTensor> tensors; // in the order of their bytes
    private final Map<String, String> metadata;

    /** How a tensor stands in a file. */
    private record Entry(
            String dtype, long[] shape, @SerializedName("data_offsets") long[] offsets) {}

    /**
     * Describes tensors that lie one after another.
     *
     * @param tensors the tensors by name, in the order of their bytes
     * @param metadata what else the file says
     */
    SafetensorsHeader(Map<String, StoredTensor> tensors, Map<String, String> metadata) {
        this.tensors = Collections.unmodifiableMap(tensors);
        this.metadata = Map.copyOf(metadata);
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
            Map<String, StoredTensor> named = new LinkedHashMap<>();
            for (StoredTensor tensor : tensors) {
                if (named.put(tensor.name(), tensor) != null) {
                    throw new IOException("two tensors are named " + tensor.name());
                }
            }
            return new SafetensorsHeader(named, metadata);
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
        Map<String, Object> json = new LinkedHashMap<>();
        if (!metadata.isEmpty()) {
            json.put("__metadata__", new TreeMap<>(metadata));
        }
        for (StoredTensor tensor : tensors.values()) {
            long[] offsets = {tensor.begin(), tensor.begin() + tensor.bytes()};
            json.put(tensor.name(), new Entry(tensor.type(), tensor.shape().getShape(), offsets));
        }
        byte[] text = GSON.toJson(json).getBytes(StandardCharsets.UTF_8);
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
