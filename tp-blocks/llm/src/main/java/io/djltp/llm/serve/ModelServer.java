package io.djltp.llm.serve;

import ai.djl.MalformedModelException;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;

import io.djltp.internal.Errors;
import io.djltp.job.JobFailedException;
import io.djltp.llm.Embedder;
import io.djltp.llm.Generator;
import io.djltp.llm.ModelConfig;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.RankFailedException;

import org.eclipse.jetty.http.HttpHeader;
import org.eclipse.jetty.http.UriCompliance;
import org.eclipse.jetty.io.Content;
import org.eclipse.jetty.server.Handler;
import org.eclipse.jetty.server.HttpConfiguration;
import org.eclipse.jetty.server.HttpConnectionFactory;
import org.eclipse.jetty.server.Request;
import org.eclipse.jetty.server.Response;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.server.handler.ErrorHandler;
import org.eclipse.jetty.util.BufferUtil;
import org.eclipse.jetty.util.Callback;
import org.eclipse.jetty.util.thread.Invocable;
import org.eclipse.jetty.util.thread.QueuedThreadPool;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

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

    private static final Logger logger = LoggerFactory.getLogger(ModelServer.class);

    static final ApiException GONE =
            new ApiException(499, null, null, "The client has closed the connection");

    private static final int BATCH = 8; // by default
    private static final int MAX_BODY = 4 << 20;
    private static final int MAX_READ = 64 << 20; // of a body that is too long
    private static final int MAX_INPUTS = 2048; // as OpenAI
    private static final int SPARE_THREADS = 24; // for what does not wait
    private static final Duration WATCH = Duration.ofMillis(250);
    private static final String JSON = "application/json";

    private static final Map<String, String> ROUTES =
            Map.of(
                    "/health", "GET",
                    "/metrics", "GET",
                    "/v1/models", "GET",
                    "/v1/chat/completions", "POST",
                    "/v1/completions", "POST",
                    "/v1/embeddings", "POST");

    private final String name;
    private final byte @Nullable [] apiKey;
    private final int maxQueue;
    private final Duration grace;
    private final Callable<? extends AutoCloseable> loader;
    private final QueuedThreadPool threads;
    private final Server server;
    private final ServerConnector connector;
    private final ServerMetrics metrics = new ServerMetrics();
    private final Set<TextCall> calls = ConcurrentHashMap.newKeySet();
    private final CountDownLatch over = new CountDownLatch(1);
    private final long created = System.currentTimeMillis() / 1000;
    private volatile @Nullable AutoCloseable model; // Generator or Embedder, when it is loaded
    private volatile @Nullable RuntimeException failure;
    private volatile boolean closing;
    private int texts; // admitted
    private boolean closed;

    private ModelServer(Builder builder) {
        loader = Errors.given(builder.loader, "A ModelServer needs setPath or setGenerator");
        name = Errors.given(builder.name, "A ModelServer needs optName, or setPath");
        String key = builder.apiKey;
        apiKey = key == null ? null : ("Bearer " + key).getBytes(StandardCharsets.UTF_8);
        maxQueue = builder.maxQueue;
        grace = builder.grace;
        threads = new QueuedThreadPool(SPARE_THREADS);
        threads.setName("tp-serve");
        server = new Server(threads);
        HttpConfiguration http = new HttpConfiguration();
        http.setSendServerVersion(false);
        UriCompliance.Violation slash = UriCompliance.Violation.AMBIGUOUS_PATH_SEPARATOR;
        http.setUriCompliance(UriCompliance.DEFAULT.with("names", slash)); // of models
        connector = new ServerConnector(server, new HttpConnectionFactory(http));
        connector.setHost(builder.host);
        connector.setPort(builder.port);
        connector.setIdleTimeout(builder.idleTimeout.toMillis());
        server.addConnector(connector);
        server.setHandler(new Routes());
        server.setErrorHandler(ModelServer::writeError);
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
            server.start();
            AutoCloseable loaded = loader.call();
            if (loaded instanceof Generator generator) {
                threads.setMaxThreads(capacity(generator) + SPARE_THREADS);
            }
            model = loaded;
            watch();
        } catch (IOException | MalformedModelException | RuntimeException e) {
            close();
            throw e;
        } catch (Exception e) {
            close();
            throw new IOException(e.getMessage(), e);
        }
    }

    /**
     * Returns the port.
     *
     * @return the port that the server listens on, or -1 if it does not
     */
    public int getPort() {
        return connector.getLocalPort();
    }

    /**
     * Waits until the server is closed.
     *
     * @throws RankFailedException if a rank fails, after which the server answers with errors only
     * @throws JobFailedException if a process of the job fails
     * @throws InterruptedException if the thread is interrupted
     */
    public void await() throws InterruptedException {
        over.await();
        RuntimeException failed = failure;
        if (failed != null) {
            throw failed;
        }
    }

    /** Stops: new requests get status 503, running ones have the time of grace to finish. */
    @Override
    public void close() {
        closing = true;
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
            awaitCalls(grace);
        }
        ApiException end = new ApiException(503, null, "shutting_down", "The server ends");
        calls.forEach(call -> call.cancel(end));
        synchronized (this) {
            awaitCalls(Duration.ofSeconds(10));
        }
        try {
            server.stop();
            AutoCloseable loaded = model;
            if (loaded != null) {
                loaded.close();
            }
        } catch (Exception e) {
            logger.warn("The server did not stop well", e);
        }
        over.countDown();
    }

    private void awaitCalls(Duration time) {
        long end = System.nanoTime() + time.toNanos();
        try {
            while (texts > 0 && System.nanoTime() < end) {
                wait(100);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Takes note that no more can be generated. */
    private void fail(RuntimeException e) {
        synchronized (this) {
            failure = failure == null ? e : failure;
        }
        over.countDown();
    }

    private void watch() {
        calls.forEach(TextCall::watch);
        if (!closed) {
            server.getScheduler().schedule(this::watch, WATCH.toMillis(), TimeUnit.MILLISECONDS);
        }
    }

    private int capacity(Generator generator) {
        return generator.getBatch() + maxQueue;
    }

    /** Takes places for texts, until the request is over. */
    private synchronized void admit(int count, int capacity, Request request) {
        if (texts + count > capacity) {
            metrics.queueFull.increment();
            throw new ApiException(
                    429, null, "queue_full", "Too many requests wait. Try again in a second");
        }
        texts += count;
        Request.addCompletionListener(request, e -> release(count));
    }

    private synchronized void release(int count) {
        texts -= count;
        notifyAll();
    }

    /** Routes of the server. */
    private final class Routes extends Handler.Abstract {

        @Override
        public boolean handle(Request request, Response response, Callback callback) {
            String path = Objects.requireNonNullElse(request.getHttpURI().getDecodedPath(), "");
            String route = path.startsWith("/v1/models/") ? "/v1/models" : path;
            String method = ROUTES.get(route);
            Request.addCompletionListener(
                    request,
                    e ->
                            metrics.countRequest(
                                    method == null ? "other" : route,
                                    e instanceof IOException
                                            ? GONE.status()
                                            : response.getStatus()));
            ApiException wrong = null;
            try {
                checkKey(request, path);
                checkMethod(request, response, path, route);
                checkType(request, method);
                if (request.getLength() > MAX_BODY) {
                    throw tooLarge();
                }
            } catch (ApiException e) {
                wrong = e;
            }
            boolean asks = request.getHeaders().contains(HttpHeader.EXPECT, "100-continue");
            if (wrong != null && asks) {
                send(wrong, response, callback);
            } else {
                new Body(wrong, route, path, request, response, callback).run();
            }
            return true;
        }
    }

    /**
     * Reads the body to its end, and then answers. Most clients listen only after they have sent
     * their body, so a body that is too long or belongs to a wrong request is read too.
     */
    private final class Body implements Invocable.Task {

        private final ByteArrayOutputStream kept = new ByteArrayOutputStream();
        private final @Nullable ApiException wrong;
        private final String route;
        private final String path;
        private final Request request;
        private final Response response;
        private final Callback callback;
        private long length;

        Body(
                @Nullable ApiException wrong,
                String route,
                String path,
                Request request,
                Response response,
                Callback callback) {
            this.wrong = wrong;
            this.route = route;
            this.path = path;
            this.request = request;
            this.response = response;
            this.callback = callback;
        }

        @Override
        public InvocationType getInvocationType() {
            return InvocationType.NON_BLOCKING;
        }

        @Override
        public void run() {
            for (boolean last = false; !last; ) {
                Content.Chunk chunk = request.read();
                if (chunk == null) {
                    request.demand(this);
                    return;
                }
                if (Content.Chunk.isFailure(chunk)) {
                    response.getHeaders().put(HttpHeader.CONNECTION, "close");
                    send(
                            new ApiException(408, null, null, "The body has not come"),
                            response,
                            callback);
                    return;
                }
                length += chunk.remaining();
                if (wrong == null && length <= MAX_BODY) {
                    kept.writeBytes(BufferUtil.toArray(chunk.getByteBuffer()));
                }
                last = chunk.isLast() || length > MAX_READ;
                chunk.release();
            }
            threads.execute(this::answerNow);
        }

        private void answerNow() {
            if (wrong != null) {
                send(wrong, response, callback);
            } else if (length > MAX_BODY) {
                send(tooLarge(), response, callback);
            } else {
                answer(route, path, kept.toByteArray(), request, response, callback);
            }
        }
    }

    private static void checkMethod(Request request, Response response, String path, String route) {
        String method = ROUTES.get(route);
        if (method == null) {
            throw notFound("There is no " + path + " here");
        }
        String given = request.getMethod();
        if (!given.equals(method) && !(given.equals("HEAD") && method.equals("GET"))) {
            response.getHeaders().put(HttpHeader.ALLOW, method);
            throw new ApiException(
                    405, null, null, "Use " + method + " for " + route + ", not " + given);
        }
    }

    /** Checks that the client may use the routes of OpenAI. */
    private void checkKey(Request request, String path) {
        if (apiKey != null && path.startsWith("/v1/")) {
            String given = request.getHeaders().get(HttpHeader.AUTHORIZATION);
            String named = given == null ? "" : given.replaceFirst("(?i)^bearer ", "Bearer ");
            byte[] bytes = named.getBytes(StandardCharsets.UTF_8);
            if (!MessageDigest.isEqual(apiKey, bytes)) {
                throw new ApiException(
                        401,
                        null,
                        "invalid_api_key",
                        "The API key is missing or wrong. Send the header Authorization: Bearer KEY");
            }
        }
    }

    /** Checks the type of a body. Pages of a browser cannot send this one alone. */
    private static void checkType(Request request, @Nullable String method) {
        String type = request.getHeaders().get(HttpHeader.CONTENT_TYPE);
        boolean json = type != null && type.split(";")[0].trim().equalsIgnoreCase(JSON);
        if ("POST".equals(method) && !json) {
            throw new ApiException(
                    415, null, null, "The Content-Type must be " + JSON + ", not " + type);
        }
    }

    private static ApiException tooLarge() {
        return new ApiException(413, null, null, "The body has more than " + MAX_BODY + " bytes");
    }

    private static ApiException notFound(String message) {
        return new ApiException(404, null, "not_found", message);
    }

    /** Returns the model, which answers. */
    private AutoCloseable ready() {
        if (closing) {
            throw new ApiException(503, null, "shutting_down", "The server ends");
        }
        RuntimeException failed = failure;
        if (failed != null) {
            throw new ApiException(
                    503, null, "failed", "The model has failed: " + failed.getMessage());
        }
        AutoCloseable loaded = model;
        if (loaded == null) {
            throw new ApiException(503, null, "loading", "The model is being loaded");
        }
        return loaded;
    }

    private <T> T ready(Class<T> type, String other) {
        AutoCloseable loaded = ready();
        if (!type.isInstance(loaded)) {
            throw ApiException.of("model", "The model %s has no such route. Use %s", name, other);
        }
        return type.cast(loaded);
    }

    private void get(String path, Response response, Callback callback) {
        if (path.equals("/metrics")) {
            AutoCloseable loaded = model;
            boolean generates = loaded instanceof Generator;
            Generator generator = generates ? (Generator) loaded : null;
            String text =
                    generator == null
                            ? metrics.text(0, 0, List.of())
                            : metrics.text(
                                    generator.getRunning(),
                                    generator.getWaiting(),
                                    generator.getBytes());
            send(200, "text/plain; version=0.0.4; charset=utf-8", text, response, callback);
            return;
        }
        JsonObject json = new JsonObject();
        if (path.equals("/health")) {
            ready();
            json.addProperty("status", "ok");
        } else if (path.equals("/v1/models")) {
            JsonArray models = new JsonArray();
            models.add(describe());
            json.addProperty("object", "list");
            json.add("data", models);
        } else if (path.equals("/v1/models/" + name)) {
            json = describe();
        } else {
            throw noModel(path.substring("/v1/models/".length()));
        }
        send(200, JSON, json.toString(), response, callback);
    }

    private JsonObject describe() {
        JsonObject json = new JsonObject();
        json.addProperty("id", name);
        json.addProperty("object", "model");
        json.addProperty("created", created);
        json.addProperty("owned_by", "tp");
        return json;
    }

    private ApiException noModel(String asked) {
        String message = "There is no model " + asked + ", only " + name;
        return new ApiException(404, "model", "model_not_found", message);
    }

    private void answer(
            String route,
            String path,
            byte[] body,
            Request request,
            Response response,
            Callback callback) {
        try {
            if ("GET".equals(ROUTES.get(route))) {
                get(path, response, callback);
                return;
            }
            ready();
            Fields fields = Fields.parse(body);
            if (fields.has("model") && !fields.string("model").equals(name)) {
                throw noModel(fields.string("model"));
            }
            if (route.equals("/v1/embeddings")) {
                send(200, JSON, embed(fields, request).toString(), response, callback);
            } else {
                generate(fields, route.contains("chat"), request, response, callback);
            }
        } catch (ApiException e) {
            send(e, response, callback);
        } catch (IOException e) { // the client has gone
            callback.failed(e);
        } catch (RuntimeException | Error e) {
            if (e instanceof RankFailedException || e instanceof JobFailedException) {
                fail((RuntimeException) e);
            } else {
                logger.error("A request has failed", e);
            }
            String message = "The model has failed: " + e.getMessage();
            send(new ApiException(500, null, "failed", message), response, callback);
        }
    }

    private void generate(
            Fields fields, boolean chat, Request request, Response response, Callback callback)
            throws IOException {
        Generator generator = ready(Generator.class, "/v1/embeddings");
        TextRequest asked = new TextRequest(fields, chat, generator);
        int count = asked.prompts.size();
        int capacity = capacity(generator);
        if (count > capacity) {
            throw ApiException.of(
                    "n", "The request is for %s texts, and the server takes %s", count, capacity);
        }
        admit(count, capacity, request);
        TextCall call = new TextCall(asked, generator, name, metrics, request, response);
        calls.add(call);
        try {
            String rest = call.run();
            if (asked.stream) {
                Content.Sink.write(response, true, rest, callback);
            } else {
                send(200, JSON, rest, response, callback);
            }
        } finally {
            calls.remove(call);
        }
    }

    private JsonObject embed(Fields fields, Request request) {
        Embedder embedder = ready(Embedder.class, "/v1/completions");
        List<String> texts = fields.strings("input", MAX_INPUTS);
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
        admit(1, 1 + maxQueue, request);
        JsonArray data = new JsonArray();
        long tokens = 0;
        List<float[]> vectors = TextRequest.checked("input", () -> embedder.embed(texts));
        for (int i = 0; i < vectors.size(); i++) {
            tokens += embedder.countTokens(texts.get(i));
            JsonObject each = new JsonObject();
            each.addProperty("object", "embedding");
            each.addProperty("index", i);
            each.add("embedding", vector(vectors.get(i), format));
            data.add(each);
        }
        metrics.promptTokens.add(tokens);
        JsonObject usage = new JsonObject();
        usage.addProperty("prompt_tokens", tokens);
        usage.addProperty("total_tokens", tokens);
        JsonObject all = new JsonObject();
        all.addProperty("object", "list");
        all.add("data", data);
        all.addProperty("model", name);
        all.add("usage", usage);
        return all;
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

    private static void send(ApiException e, Response response, Callback callback) {
        String error = e.toJson().toString();
        if (e == GONE) {
            response.setStatus(e.status());
            callback.succeeded(); // if it failed, Jetty would write an error of status 500
        } else if (response.isCommitted()) {
            Content.Sink.write(response, true, TextCall.event(e.toJson()), callback);
        } else {
            if (e.status() == 429 || e.status() == 503) {
                response.getHeaders().put(HttpHeader.RETRY_AFTER, "1");
            }
            send(e.status(), JSON, error, response, callback);
        }
    }

    private static void send(
            int status, String type, String body, Response response, Callback callback) {
        response.setStatus(status);
        response.getHeaders().put(HttpHeader.CONTENT_TYPE, type);
        Content.Sink.write(response, true, body, callback);
    }

    /** Writes the errors that Jetty finds, such as a request that is not HTTP. */
    private static boolean writeError(Request request, Response response, Callback callback) {
        Object message = request.getAttribute(ErrorHandler.ERROR_MESSAGE);
        int status = response.getStatus();
        send(new ApiException(status, null, null, status + " " + message), response, callback);
        return true;
    }

    /**
     * Creates a builder to build a {@code ModelServer}.
     *
     * @return a new builder
     */
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
