package io.djltp.internal.http;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonPrimitive;
import com.google.gson.Strictness;
import com.google.gson.TypeAdapter;
import com.google.gson.reflect.TypeToken;
import com.google.gson.stream.JsonReader;
import com.google.gson.stream.JsonToken;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.StringReader;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** The fields of a request. A field of {@code null} counts as missing. */
public final class Fields {

    private static final Gson GSON = new GsonBuilder().serializeNulls().create();
    private static final TypeAdapter<JsonElement> ADAPTER = GSON.getAdapter(JsonElement.class);

    private final JsonObject object;

    /**
     * Wraps an object.
     *
     * @param object the object
     */
    public Fields(JsonObject object) {
        this.object = object;
    }

    /**
     * Reads a body, which must be one JSON object.
     *
     * @param body the body
     * @return its fields
     */
    public static Fields parse(byte[] body) {
        String text;
        try {
            text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(body)).toString();
        } catch (CharacterCodingException e) {
            throw ApiException.of(null, "The body is not UTF-8");
        }
        JsonReader reader = new JsonReader(new StringReader(text));
        reader.setStrictness(Strictness.STRICT);
        try {
            JsonElement element = ADAPTER.read(reader);
            if (reader.peek() == JsonToken.END_DOCUMENT && element.isJsonObject()) {
                return new Fields(element.getAsJsonObject());
            }
        } catch (IOException | JsonParseException | NumberFormatException e) {
            throw ApiException.of(null, "The body is not JSON at %s", shorten(reader.getPath()));
        }
        throw ApiException.of(null, "The body is not a JSON object");
    }

    /**
     * Checks that there are no other fields.
     *
     * @param names the names of all that may be there
     * @return these fields
     * @throws ApiException if there is another one
     */
    public Fields only(String... names) {
        List<String> known = List.of(names);
        for (String name : object.keySet()) {
            if (!known.contains(name)) {
                throw ApiException.of(
                        name,
                        "The field '%s' is not known. Use %s",
                        name,
                        String.join(", ", known));
            }
        }
        return this;
    }

    /**
     * Returns an object of an answer.
     *
     * @param fields the names of its fields, each before its value
     * @return the object
     */
    public static JsonObject json(@Nullable Object... fields) {
        JsonObject json = new JsonObject();
        for (int i = 0; i < fields.length; i += 2) {
            Object value = fields[i + 1]; // a part of an answer is not copied
            JsonElement tree = value instanceof JsonElement part ? part : GSON.toJsonTree(value);
            json.add(String.valueOf(fields[i]), tree);
        }
        return json;
    }

    /**
     * Returns a field.
     *
     * @param name its name
     * @return its value, or {@code null} if it is missing
     */
    public @Nullable JsonElement get(String name) {
        JsonElement value = object.get(name);
        return value == null || value.isJsonNull() ? null : value;
    }

    /**
     * Returns whether a field is there.
     *
     * @param name its name
     * @return whether it is there
     */
    public boolean has(String name) {
        return get(name) != null;
    }

    /**
     * Returns a field that must be there.
     *
     * @param name its name
     * @return its value
     */
    public JsonElement required(String name) {
        JsonElement value = get(name);
        if (value == null) {
            throw new ApiException(
                    400, name, "missing_required_parameter", "The field '" + name + "' is missing");
        }
        return value;
    }

    /**
     * Returns a string.
     *
     * @param name the name of the field
     * @return the string
     */
    public String string(String name) {
        return string(required(name), name);
    }

    /**
     * Returns a string.
     *
     * @param value the value
     * @param name the name of its field
     * @return the string
     */
    public static String string(JsonElement value, String name) {
        return string(value, name, "a string");
    }

    private static String string(JsonElement value, String name, String kind) {
        String text = primitive(value, name, kind).getAsString();
        if (!value.getAsJsonPrimitive().isString()) {
            throw wrong(name, kind, value);
        }
        if (!StandardCharsets.UTF_8.newEncoder().canEncode(text)) {
            throw ApiException.of(name, "The field '%s' has half of a surrogate pair", name);
        }
        return text;
    }

    /**
     * Returns a truth value.
     *
     * @param name the name of the field
     * @return whether it is there and true
     */
    public boolean is(String name) {
        JsonElement value = get(name);
        if (value == null) {
            return false;
        }
        if (!primitive(value, name, "true or false").isBoolean()) {
            throw wrong(name, "true or false", value);
        }
        return value.getAsBoolean();
    }

    /**
     * Returns a number.
     *
     * @param value the value
     * @param name the name of its field
     * @return the number
     */
    public static float number(JsonElement value, String name) {
        if (!primitive(value, name, "a number").isNumber()) {
            throw wrong(name, "a number", value);
        }
        return (float) value.getAsDouble();
    }

    /**
     * Returns an integer, or a default if the field is missing.
     *
     * @param name the name of the field
     * @param least the least
     * @param most the most
     * @param byDefault the default
     * @return the integer
     */
    public long integer(String name, long least, long most, long byDefault) {
        JsonElement value = get(name);
        return value == null ? byDefault : integer(value, name, least, most);
    }

    /**
     * Returns an integer.
     *
     * @param value the value
     * @param name the name of its field
     * @param least the least
     * @param most the most
     * @return the integer
     */
    public static long integer(JsonElement value, String name, long least, long most) {
        String kind = "an integer from " + least + " to " + most;
        JsonPrimitive primitive = primitive(value, name, kind);
        try {
            long number = Long.parseLong(primitive.getAsString());
            if (primitive.isNumber() && number >= least && number <= most) {
                return number;
            }
            throw wrong(name, kind, value);
        } catch (NumberFormatException e) {
            throw wrong(name, kind, value);
        }
    }

    /**
     * Returns the elements of a list, which a single element may stand for.
     *
     * @param name the name of the field
     * @param least how many there must be
     * @param most how many there may be
     * @return the elements
     */
    public List<JsonElement> list(String name, int least, int most) {
        JsonElement value = required(name);
        if (!(value instanceof JsonArray array)) {
            return List.of(value);
        }
        if (array.size() < least || array.size() > most) {
            throw ApiException.of(
                    name,
                    "The field '%s' must have %s to %s elements, not %s",
                    name,
                    least,
                    most,
                    array.size());
        }
        return array.asList();
    }

    /**
     * Returns the strings of a list, or a single one.
     *
     * @param name the name of the field
     * @param least how many there must be
     * @param most how many there may be
     * @return the strings, none if the field is missing
     */
    public List<String> strings(String name, int least, int most) {
        List<String> strings = new ArrayList<>();
        if (has(name)) {
            String kind = "text, a string or a list of strings";
            list(name, least, most).forEach(each -> strings.add(string(each, name, kind)));
        }
        return strings;
    }

    /**
     * Returns an object.
     *
     * @param name the name of the field
     * @return the object
     */
    public Fields object(String name) {
        JsonElement value = required(name);
        if (value.isJsonObject()) {
            return new Fields(value.getAsJsonObject());
        }
        throw wrong(name, "an object", value);
    }

    /** {@return the values as Java's} */
    public Map<String, Object> toMap() {
        return GSON.fromJson(object, new TypeToken<Map<String, Object>>() {}.getType());
    }

    private static JsonPrimitive primitive(JsonElement value, String name, String kind) {
        if (value instanceof JsonPrimitive primitive) {
            return primitive;
        }
        throw wrong(name, kind, value);
    }

    /**
     * Returns the error of a value.
     *
     * @param name the name of its field
     * @param kind what it must be
     * @param value the value
     * @return the error
     */
    public static ApiException wrong(String name, String kind, JsonElement value) {
        String shown = shorten(value.toString());
        return ApiException.of(name, "The field '%s' must be %s, not %s", name, kind, shown);
    }

    private static String shorten(String text) {
        return text.length() > 80 ? text.substring(0, 80) + "..." : text;
    }
}
