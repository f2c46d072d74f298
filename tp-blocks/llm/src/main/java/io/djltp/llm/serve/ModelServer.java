package io.djltp.llm.serve;

import ai.djl.MalformedModelException;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;

import io.djltp.internal.Errors;
import io.djltp.internal.http.ApiException;
import io.djltp.internal.http.Fields;
import io.djltp.internal.http.HttpFront;
import io.djltp.internal.http.HttpFront.Call;
import io.djltp.internal.http.HttpMetrics;
import io.djltp.job.JobFailedException;
import io.djltp.llm.Embedder;
import io.djltp.llm.Generator;
import io.djltp.llm.ModelConfig;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.RankFailedException;

import org.eclipse.jetty.io.Content;
import org.eclipse.jetty.server.Request;
import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Serves a language model over HTTP, with the schema of OpenAI: chats, completions and embeddings.
 *
 * <pre>{@code
 * try (ModelServer server = ModelServer.builder().setPath(folder).optPort(8000).build()) {
 *     server.start();
 *     server.await();
 * }
 * }</pre>
 *
 * <p>A {@link Generator} answers {@code /v1/chat/completions} and {@code /v1/completions}, also as
 * server-sent events; an {@link Embedder} answers {@code /v1/embeddings}. Both have {@code
 * /v1/models}, {@code /health} and, for Prometheus, {@code /metrics}. Requests join and leave the
 * running batch at each step. If too many wait, a request gets status 429. A client that closes its
 * connection ends its texts.
 *
 * <p>A sampling parameter that a request leaves out has the value of {@code
 * generation_config.json}, as in vLLM; without that, the likeliest token is chosen.
 *
 * <p>It needs the dependency {@code org.eclipse.jetty:jetty-server}. Connections are not encrypted.
 */
public final class ModelServer implements AutoCloseable {

    private static final int BATCH = 8; // by default
    private static final int MAX_INPUTS = 2048; // as OpenAI
    private static final Duration WATCH = Duration.ofMillis(250);

    private static final Map<String, String> ROUTES =
            Map.of(
                    "/health", "GET",
                    "/metrics", "GET",
                    "/v1/models", "GET",
                    "/v1/chat/completions", "POST",
                    "/v1/completions", "POST",
                    "/v1/embeddings", "POST");

    private final String name;
    private final int maxQueue;
    private final Duration grace;
    private final Callable<? extends AutoCloseable> loader;
    private final HttpFront front;
    private final ServerMetrics metrics = new ServerMetrics();
    private final Set<TextCall> calls = ConcurrentHashMap.newKeySet();
    private final long created = System.currentTimeMillis() / 1000;
    private volatile @Nullable AutoCloseable model; // Generator or Embedder, when it is loaded

    private ModelServer(Builder builder) {
        loader = Errors.given(builder.loader, "A ModelServer needs setPath or setGenerator");
        name = Errors.given(builder.name, "A ModelServer needs optName, or setPath");
        maxQueue = builder.maxQueue;
        grace = builder.grace;
        front =
                new HttpFront(
                        builder.host,
                        builder.port,
                        builder.apiKey,
                        builder.idleTimeout,
                        ROUTES,
                        path -> path.startsWith("/v1/models/") ? "/v1/models" : path,
                        metrics,
                        this::answer);
    }

    /**
     * Listens, and loads the model. Until it is loaded, requests get status 503.
     *
     * @throws IOException if the server cannot listen, or a file of the model cannot be read
     * @throws MalformedModelException if the folder is not that of a model that is implemented
     * @throws IllegalArgumentException if the model does not fit
     */
    public void start() throws IOException, MalformedModelException {
        try {
            front.listen();
            AutoCloseable loaded = loader.call();
            model = loaded;
            front.setReady(loaded instanceof Generator generator ? capacity(generator) : 0);
            watch();
        } catch (IOException | MalformedModelException | RuntimeException e) {
            close();
            throw e;
        } catch (Exception e) {
            close();
            throw new IOException(e.getMessage(), e);
        }
    }

    /** {@return the port that the server listens on, or -1 if it does not} */
    public int getPort() {
        return front.getPort();
    }

    /**
     * Waits until the server is closed.
     *
     * @throws RankFailedException if a rank fails, after which the server answers with errors only
     * @throws JobFailedException if a process of the job fails
     * @throws InterruptedException if the thread is interrupted
     */
    public void await() throws InterruptedException {
        front.await();
    }

    /** Stops: new requests get status 503, running ones have the time of grace to finish. */
    @Override
    public void close() {
        ApiException end = new ApiException(503, null, "shutting_down", "The server ends");
        front.close(
                grace,
                () -> calls.forEach(call -> call.cancel(end)),
                () -> {
                    AutoCloseable loaded = model;
                    if (loaded != null) {
                        loaded.close();
                    }
                });
    }

    private void watch() {
        calls.forEach(TextCall::watch);
        if (!front.isClosing()) {
            front.schedule(this::watch, WATCH);
        }
    }

    private int capacity(Generator generator) {
        return generator.getBatch() + maxQueue;
    }

    private <T> T ready(Class<T> type, String other) {
        AutoCloseable loaded = model;
        if (!type.isInstance(loaded)) {
            throw ApiException.of("model", "The model %s has no such route. Use %s", name, other);
        }
        return type.cast(loaded);
    }

    private void answer(Call call) throws IOException {
        if ("GET".equals(ROUTES.get(call.route()))) {
            get(call);
            return;
        }
        Fields fields = Fields.parse(call.body());
        if (fields.has("model") && !fields.string("model").equals(name)) {
            throw noModel(fields.string("model"));
        }
        if (call.route().equals("/v1/embeddings")) {
            call.send(HttpFront.JSON, embed(fields, call.request()).toString());
        } else {
            generate(fields, call);
        }
    }

    private void get(Call call) {
        String path = call.path();
        JsonObject json;
        if (path.equals("/metrics")) {
            String text =
                    model instanceof Generator generator
                            ? metrics.text(
                                    generator.getRunning(),
                                    generator.getWaiting(),
                                    generator.getBytes())
                            : metrics.text(0, 0, List.of());
            call.send(HttpMetrics.TYPE, text);
            return;
        } else if (path.equals("/v1/models")) {
            json = Fields.json("object", "list", "data", List.of(describe()));
        } else if (path.equals("/v1/models/" + name)) {
            json = describe();
        } else {
            throw noModel(path.substring("/v1/models/".length()));
        }
        call.send(HttpFront.JSON, json.toString());
    }

    private JsonObject describe() {
        return Fields.json("id", name, "object", "model", "created", created, "owned_by", "tp");
    }

    private ApiException noModel(String asked) {
        String message = "There is no model " + asked + ", only " + name;
        return new ApiException(404, "model", "model_not_found", message);
    }

    private void generate(Fields fields, Call call) throws IOException {
        Generator generator = ready(Generator.class, "/v1/embeddings");
        TextRequest asked = new TextRequest(fields, call.route().contains("chat"), generator);
        int count = asked.prompts.size();
        int capacity = capacity(generator);
        if (count > capacity) {
            throw ApiException.of(
                    "n", "The request is for %s texts, and the server takes %s", count, capacity);
        }
        front.admit(count, capacity, call.request());
        TextCall texts =
                new TextCall(asked, generator, name, metrics, call.request(), call.response());
        calls.add(texts);
        try {
            String rest = texts.run();
            if (asked.stream) {
                Content.Sink.write(call.response(), true, rest, call.callback());
            } else {
                call.send(HttpFront.JSON, rest);
            }
        } finally {
            calls.remove(texts);
        }
    }

    private JsonObject embed(Fields fields, Request request) {
        Embedder embedder = ready(Embedder.class, "/v1/completions");
        List<String> texts = fields.strings("input", 1, MAX_INPUTS);
        if (texts.isEmpty()) {
            fields.required("input");
        }
        String format = fields.has("encoding_format") ? fields.string("encoding_format") : "float";
        if (!Set.of("float", "base64").contains(format)) {
            throw Fields.wrong(
                    "encoding_format", "float or base64", fields.required("encoding_format"));
        }
        int width = embedder.getWidth();
        fields.integer("dimensions", width, width, width);
        front.admit(1, 1 + maxQueue, request);
        JsonArray data = new JsonArray();
        long tokens = 0;
        List<Embedder.Embedding> vectors =
                TextRequest.checked("input", () -> embedder.embedAndCount(texts));
        for (int i = 0; i < vectors.size(); i++) {
            tokens += vectors.get(i).tokens();
            JsonElement vector = vector(vectors.get(i).vector(), format);
            data.add(Fields.json("object", "embedding", "index", i, "embedding", vector));
        }
        metrics.promptTokens.add(tokens);
        JsonObject usage = Fields.json("prompt_tokens", tokens, "total_tokens", tokens);
        return Fields.json("object", "list", "data", data, "model", name, "usage", usage);
    }

    private static JsonElement vector(float[] vector, String format) {
        if (format.equals("base64")) {
            ByteBuffer bytes =
                    ByteBuffer.allocate(Float.BYTES * vector.length).order(ByteOrder.LITTLE_ENDIAN);
            bytes.asFloatBuffer().put(vector);
            return new JsonPrimitive(Base64.getEncoder().encodeToString(bytes.array()));
        }
        JsonArray array = new JsonArray();
        for (float value : vector) {
            array.add(value);
        }
        return array;
    }

    /** {@return a new builder of a server} */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link ModelServer}. */
    public static final class Builder {

        private @Nullable Callable<? extends AutoCloseable> loader;
        private @Nullable String name;
        private @Nullable String apiKey;
        private String host = "127.0.0.1";
        private int port;
        private int maxQueue = 64;
        private Duration idleTimeout = Duration.ofSeconds(60);
        private Duration grace = Duration.ofSeconds(30);

        private Builder() {}

        /**
         * Sets the folder of the model, which is loaded over as many ranks as there are processors,
         * for 8 texts at a time.
         *
         * @param folder a folder of Hugging Face
         * @return this builder
         */
        public Builder setPath(Path folder) {
            loader = () -> open(folder);
            return name == null ? optName(nameOf(folder)) : this;
        }

        /**
         * Sets what opens a model that generates text.
         *
         * @param loader opens it, when the server listens; the server closes it
         * @return this builder
         */
        public Builder setGenerator(Callable<Generator> loader) {
            this.loader = loader;
            return this;
        }

        /**
         * Sets what opens an encoder.
         *
         * @param loader opens it, when the server listens; the server closes it
         * @return this builder
         */
        public Builder setEmbedder(Callable<Embedder> loader) {
            this.loader = loader;
            return this;
        }

        /**
         * Sets the name of the model in requests. Default: that of the folder of {@link #setPath}.
         *
         * @param name the name
         * @return this builder
         */
        public Builder optName(String name) {
            this.name = name;
            return this;
        }

        /**
         * Sets the address to listen on. Default: 127.0.0.1, which only programs of this machine
         * reach.
         *
         * @param host a name or an address; {@code 0.0.0.0} is all of the machine
         * @return this builder
         */
        public Builder optHost(String host) {
            this.host = host;
            return this;
        }

        /**
         * Sets the port. Default: 0, any that is free.
         *
         * @param port 0 to 65535
         * @return this builder
         */
        public Builder optPort(int port) {
            Errors.check(port >= 0 && port < 65536, "The port must be 0 to 65535, not %s", port);
            this.port = port;
            return this;
        }

        /**
         * Sets a key that requests to {@code /v1} must have as {@code Authorization: Bearer KEY}.
         * Default: none.
         *
         * @param apiKey the key
         * @return this builder
         */
        public Builder optApiKey(String apiKey) {
            Errors.check(!apiKey.isBlank(), "The API key must not be empty");
            this.apiKey = apiKey;
            return this;
        }

        /**
         * Sets how many texts may wait while others are generated. Further requests get status 429.
         * Default: 64.
         *
         * @param maxQueue 0 or more
         * @return this builder
         */
        public Builder optMaxQueue(int maxQueue) {
            Errors.check(maxQueue >= 0, "The queue must be 0 or more, not %s", maxQueue);
            this.maxQueue = maxQueue;
            return this;
        }

        /**
         * Sets how long a client may send nothing of a request, or take nothing of an answer.
         * Default: 60 seconds.
         *
         * @param idleTimeout the time
         * @return this builder
         */
        public Builder optIdleTimeout(Duration idleTimeout) {
            this.idleTimeout = idleTimeout;
            return this;
        }

        /**
         * Sets how long {@link ModelServer#close} waits for requests that are being answered.
         * Default: 30 seconds.
         *
         * @param grace the time
         * @return this builder
         */
        public Builder optGrace(Duration grace) {
            this.grace = grace;
            return this;
        }

        /**
         * Builds the server, which does not listen yet.
         *
         * @return the server
         * @throws IllegalArgumentException if there is no model or no name
         */
        public ModelServer build() {
            return new ModelServer(this);
        }

        private static String nameOf(Path folder) {
            Path last = folder.toAbsolutePath().normalize().getFileName();
            return last == null ? "model" : last.toString();
        }

        private static AutoCloseable open(Path folder) throws IOException, MalformedModelException {
            ModelConfig config = ModelConfig.read(folder);
            if (config.isEncoder()) {
                int processors = Runtime.getRuntime().availableProcessors();
                int ranks = Math.min(processors, config.getHeads());
                return Embedder.load(folder, ParallelConfig.tensor(ranks));
            }
            return Generator.builder().setPath(folder).optBatch(BATCH).build();
        }
    }
}
