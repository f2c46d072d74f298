package io.djltp.llm.zoo;

import ai.djl.inference.streaming.StreamingBlock;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonPrimitive;

import io.djltp.internal.Errors;
import io.djltp.llm.Embedder;
import io.djltp.llm.Generation;
import io.djltp.llm.GenerationOptions;
import io.djltp.llm.Generator;

import org.jspecify.annotations.Nullable;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/**
 * A generator or an embedder as a block, without parameters of its own.
 *
 * <ul>
 *   <li>input: requests [B, N], the bytes of {@code {"inputs": text, "parameters": {..}}} in UTF-8
 *   <li>output: the texts that follow, [B, M] in UTF-8, or their vectors [B, D]
 * </ul>
 *
 * <p>Rows of bytes are int8, and -1, which UTF-8 does not have, fills them up. Given ids, positions
 * and a mask, it is {@link Generator#forward}.
 */
final class LanguageModelBlock extends AbstractBlock implements StreamingBlock, AutoCloseable {

    private static final byte VERSION = 1;

    private final @Nullable Generator generator;
    private final GenerationOptions defaults;
    private final @Nullable Embedder embedder;

    LanguageModelBlock(Generator generator, GenerationOptions defaults) {
        super(VERSION);
        this.generator = generator;
        this.defaults = defaults;
        embedder = null;
    }

    LanguageModelBlock(Embedder embedder) {
        super(VERSION);
        this.embedder = embedder;
        defaults = GenerationOptions.builder().build();
        generator = null;
    }

    boolean isEncoder() {
        return embedder != null;
    }

    /** Returns the request for a text. */
    static String request(String text) {
        return new Gson().toJson(Map.of("inputs", text));
    }

    /** Returns texts as rows of bytes. */
    static NDArray rows(List<String> texts, NDManager manager) {
        List<byte[]> all =
                texts.stream().map(text -> text.getBytes(StandardCharsets.UTF_8)).toList();
        int longest = all.stream().mapToInt(row -> row.length).max().orElse(0) + 1;
        byte[] bytes = new byte[all.size() * longest];
        Arrays.fill(bytes, (byte) -1);
        for (int i = 0; i < all.size(); i++) {
            System.arraycopy(all.get(i), 0, bytes, i * longest, all.get(i).length);
        }
        return manager.create(bytes, new Shape(all.size(), longest));
    }

    /** Returns the text of a row. */
    static String text(NDArray row) {
        byte[] bytes = row.toByteArray();
        int length = bytes.length;
        while (length > 0 && bytes[length - 1] == -1) {
            length--;
        }
        return new String(bytes, 0, length, StandardCharsets.UTF_8);
    }

    private record Request(String text, GenerationOptions options) {}

    private List<Request> parse(NDArray rows) {
        List<Request> requests = new ArrayList<>();
        for (int i = 0; i < rows.getShape().get(0); i++) {
            try (NDArray row = rows.get(i)) {
                requests.add(parse(text(row)));
            }
        }
        return requests;
    }

    private Request parse(String json) {
        try {
            JsonObject request =
                    Objects.requireNonNull(new Gson().fromJson(json, JsonObject.class));
            JsonElement text = request.get("inputs");
            Errors.check(
                    text instanceof JsonPrimitive primitive && primitive.isString(),
                    "The request has no text. Send {\"inputs\": text}");
            GenerationOptions.Builder options = defaults.toBuilder();
            if (request.get("parameters") instanceof JsonObject parameters) {
                parameters.entrySet().forEach(each -> set(options, each));
            }
            return new Request(text.getAsString(), options.build());
        } catch (JsonParseException
                | NumberFormatException
                | IllegalStateException
                | UnsupportedOperationException e) {
            throw new IllegalArgumentException("The request is malformed: " + e.getMessage(), e);
        }
    }

    private static void set(
            GenerationOptions.Builder options, Map.Entry<String, JsonElement> parameter) {
        JsonElement value = parameter.getValue();
        switch (parameter.getKey()) {
            case "max_new_tokens" -> options.optMaxTokens(value.getAsInt());
            case "temperature" -> options.optTemperature(value.getAsFloat());
            case "top_k" -> options.optTopK(value.getAsInt());
            case "top_p" -> options.optTopP(value.getAsFloat());
            case "min_p" -> options.optMinP(value.getAsFloat());
            case "repetition_penalty" -> options.optRepetitionPenalty(value.getAsFloat());
            case "seed" -> options.optSeed(value.getAsLong());
            case "stop" ->
                    options.optStopStrings(
                            value.getAsJsonArray().asList().stream()
                                    .map(JsonElement::getAsString)
                                    .toList());
            default ->
                    throw Errors.argument(
                            "The parameter %s is not known. Use one of max_new_tokens, temperature,"
                                    + " top_k, top_p, min_p, repetition_penalty, seed and stop",
                            parameter.getKey());
        }
    }

    @Override
    protected NDList forwardInternal(
            ParameterStore parameterStore,
            NDList inputs,
            boolean training,
            @Nullable PairList<String, Object> params) {
        if (generator != null && inputs.size() > 1) {
            return generator.forward(inputs);
        }
        NDManager manager = inputs.head().getManager();
        List<Request> requests = parse(inputs.head());
        if (embedder != null) {
            List<float[]> vectors = embedder.embed(requests.stream().map(Request::text).toList());
            return new NDList(manager.create(vectors.toArray(new float[0][])));
        }
        List<Generation> begun = new ArrayList<>();
        try { // all of them, which share the batch
            requests.forEach(each -> begun.add(begin(each)));
            List<String> texts = begun.stream().map(each -> each.finish().get(0)).toList();
            return new NDList(rows(texts, manager));
        } finally {
            begun.forEach(Generation::close);
        }
    }

    private Generation begin(Request request) {
        return Objects.requireNonNull(generator).generate(request.text(), request.options());
    }

    /** Returns the pieces of the text that follows, one row each. */
    @Override
    public Iterator<NDList> forwardStreamIter(
            ParameterStore parameterStore,
            NDList inputs,
            boolean training,
            @Nullable PairList<String, Object> params) {
        Errors.check(!isEncoder(), "An encoder has no text to stream: use predict");
        List<Request> requests = parse(inputs.head());
        Errors.check(requests.size() == 1, "One text can be streamed, not %s", requests.size());
        NDManager manager = inputs.head().getManager();
        Generation text = begin(requests.get(0));
        return new Iterator<>() {
            @Override
            public boolean hasNext() {
                return text.hasNext();
            }

            @Override
            public NDList next() {
                String piece;
                do {
                    piece = text.next().text();
                } while (piece.isEmpty() && text.hasNext());
                return new NDList(rows(List.of(piece), manager));
            }
        };
    }

    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        long width = embedder == null ? -1 : embedder.getWidth();
        return new Shape[] {new Shape(inputShapes[0].get(0), width)};
    }

    @Override
    public void close() {
        if (generator != null) {
            generator.close();
        }
        if (embedder != null) {
            embedder.close();
        }
    }
}
