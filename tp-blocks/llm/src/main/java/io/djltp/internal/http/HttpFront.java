package io.djltp.internal.http;

import com.google.gson.JsonObject;

import io.djltp.job.JobFailedException;
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
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;

/**
 * The side of a server that speaks HTTP: it checks keys, methods and bodies, bounds what waits,
 * answers errors in the schema of OpenAI, and ends when what is running is answered.
 */
public final class HttpFront {

    /** The type of JSON. */
    public static final String JSON = "application/json";

    /** The error of a client that has closed its connection, which gets no answer. */
    public static final ApiException GONE =
            new ApiException(499, null, null, "The client has closed the connection");

    private static final Logger logger = LoggerFactory.getLogger(HttpFront.class);

    private static final String FAILED = "The model has failed: ";
    private static final int MAX_BODY = 4 << 20;
    private static final int MAX_READ = 64 << 20; // of a body that is too long
    private static final int SPARE_THREADS = 24; // for what does not wait
    private static final Set<String> WITHOUT_KEY = Set.of("/health", "/metrics");

    private final Map<String, String> routes;
    private final UnaryOperator<String> routeOf;
    private final HttpMetrics metrics;
    private final Service service;
    private final byte @Nullable [] apiKey;
    private final QueuedThreadPool threads = new QueuedThreadPool(SPARE_THREADS);
    private final Server server = new Server(threads);
    private final ServerConnector connector;
    private final CountDownLatch over = new CountDownLatch(1);
    private volatile @Nullable RuntimeException failure;
    private volatile boolean ready;
    private volatile boolean closing;
    private int admitted;
    private boolean closed;

    /** What answers requests, in threads that may wait. */
    public interface Service {

        /**
         * Answers a request, or throws {@link ApiException}.
         *
         * @param call the request, whose route there is and whose body is whole
         * @throws IOException if the client has gone
         */
        void answer(Call call) throws IOException;
    }

    /**
     * A request.
     *
     * @param route its route
     * @param path its path
     * @param body its body
     * @param request Jetty's request
     * @param response Jetty's response
     * @param callback to be called at the end of the response
     */
    public record Call(
            String route,
            String path,
            byte[] body,
            Request request,
            Response response,
            Callback callback) {

        /**
         * Answers.
         *
         * @param type the type of the content
         * @param text the content
         */
        public void send(String type, String text) {
            HttpFront.send(200, type, text, response, callback);
        }

        private void send(ApiException e) {
            HttpFront.send(e, response, callback);
        }

        private Call with(byte[] whole) {
            return new Call(route, path, whole, request, response, callback);
        }
    }

    /**
     * Creates a server that does not listen yet.
     *
     * @param host the address
     * @param port the port, or 0 for any
     * @param apiKey the key that all requests but those for health and figures need, or {@code
     *     null}
     * @param idleTimeout how long a client may send or take nothing
     * @param routes the method of each route
     * @param routeOf returns the route of a path
     * @param metrics where requests are counted
     * @param service what answers
     */
    public HttpFront(
            String host,
            int port,
            @Nullable String apiKey,
            Duration idleTimeout,
            Map<String, String> routes,
            UnaryOperator<String> routeOf,
            HttpMetrics metrics,
            Service service) {
        this.routes = routes;
        this.routeOf = routeOf;
        this.metrics = metrics;
        this.service = service;
        this.apiKey = apiKey == null ? null : ("Bearer " + apiKey).getBytes(StandardCharsets.UTF_8);
        threads.setName("tp-serve");
        HttpConfiguration http = new HttpConfiguration();
        http.setSendServerVersion(false);
        UriCompliance.Violation slash = UriCompliance.Violation.AMBIGUOUS_PATH_SEPARATOR;
        http.setUriCompliance(UriCompliance.DEFAULT.with("names", slash)); // of models
        connector = new ServerConnector(server, new HttpConnectionFactory(http));
        connector.setHost(host);
        connector.setPort(port);
        connector.setIdleTimeout(idleTimeout.toMillis());
        server.addConnector(connector);
        server.setHandler(new Routes());
        server.setErrorHandler(HttpFront::writeError);
    }

    /**
     * Listens. Until {@link #setReady}, requests get status 503.
     *
     * @throws IOException if it cannot listen
     */
    public void listen() throws IOException {
        try {
            server.start();
        } catch (IOException | RuntimeException e) {
            throw e;
        } catch (Exception e) {
            throw new IOException(e.getMessage(), e);
        }
    }

    /**
     * Lets requests be answered.
     *
     * @param waiting how many of them may wait for each other
     */
    public void setReady(int waiting) {
        threads.setMaxThreads(waiting + SPARE_THREADS);
        ready = true;
    }

    /**
     * Runs something later.
     *
     * @param task what to run
     * @param delay when
     */
    public void schedule(Runnable task, Duration delay) {
        server.getScheduler().schedule(task, delay.toMillis(), TimeUnit.MILLISECONDS);
    }

    /** {@return the port that the server listens on, or -1 if it does not} */
    public int getPort() {
        return connector.getLocalPort();
    }

    /**
     * Waits until the server is closed or has failed.
     *
     * @throws InterruptedException if the thread is interrupted
     */
    public void await() throws InterruptedException {
        over.await();
        RuntimeException failed = failure;
        if (failed != null) {
            throw failed;
        }
    }

    /**
     * Stops: new requests get status 503, running ones have time to finish.
     *
     * @param grace the time
     * @param cancel cancels those that have not
     * @param free frees what has answered
     */
    public void close(Duration grace, Runnable cancel, AutoCloseable free) {
        closing = true;
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
            awaitCalls(grace);
        }
        cancel.run();
        synchronized (this) {
            awaitCalls(Duration.ofSeconds(10));
        }
        try {
            server.stop();
            free.close();
        } catch (Exception e) {
            logger.warn("The server did not stop well", e);
        }
        over.countDown();
    }

    /** {@return whether {@link #close} was called} */
    public boolean isClosing() {
        return closing;
    }

    private void awaitCalls(Duration time) {
        long end = System.nanoTime() + time.toNanos();
        try {
            while (admitted > 0 && System.nanoTime() < end) {
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

    /**
     * Throws the error of a server that does not answer, if it does not.
     *
     * @throws ApiException if it is loading, has failed, or ends
     */
    public void checkReady() {
        if (closing) {
            throw new ApiException(503, null, "shutting_down", "The server ends");
        }
        RuntimeException failed = failure;
        if (failed != null) {
            throw new ApiException(503, null, "failed", FAILED + failed.getMessage());
        }
        if (!ready) {
            throw new ApiException(503, null, "loading", "The model is being loaded");
        }
    }

    /**
     * Takes places for what a request asks for, until it is answered.
     *
     * @param count how many
     * @param capacity how many there are
     * @param request the request
     * @throws ApiException if they are taken, or the server ends
     */
    public synchronized void admit(int count, int capacity, Request request) {
        checkReady(); // who comes in now is not waited for
        if (admitted + count > capacity) {
            metrics.queueFull.increment();
            throw new ApiException(
                    429, null, "queue_full", "Too many requests wait. Try again in a second");
        }
        admitted += count;
        Request.addCompletionListener(request, e -> release(count));
    }

    private synchronized void release(int count) {
        admitted -= count;
        notifyAll();
    }

    /** Routes of the server. */
    private final class Routes extends Handler.Abstract {

        @Override
        public boolean handle(Request request, Response response, Callback callback) {
            String path = Objects.requireNonNullElse(request.getHttpURI().getDecodedPath(), "");
            String route = routeOf.apply(path);
            String method = routes.get(route);
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
            Call call = new Call(route, path, new byte[0], request, response, callback);
            if (wrong != null && asks) {
                call.send(wrong);
            } else {
                new Body(wrong, call).run();
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
        private final Call call; // without a body
        private long length;

        Body(@Nullable ApiException wrong, Call call) {
            this.wrong = wrong;
            this.call = call;
        }

        @Override
        public InvocationType getInvocationType() {
            return InvocationType.NON_BLOCKING;
        }

        @Override
        public void run() {
            for (boolean last = false; !last; ) {
                Content.Chunk chunk = call.request().read();
                if (chunk == null) {
                    call.request().demand(this);
                    return;
                }
                if (Content.Chunk.isFailure(chunk)) {
                    call.response().getHeaders().put(HttpHeader.CONNECTION, "close");
                    call.send(new ApiException(408, null, null, "The body has not come"));
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
                call.send(wrong);
            } else if (length > MAX_BODY) {
                call.send(tooLarge());
            } else {
                answer(call.with(kept.toByteArray()));
            }
        }
    }

    private void answer(Call call) {
        try {
            if (call.route().equals("/health")) {
                checkReady();
                call.send(JSON, "{\"status\":\"ok\"}");
                return;
            }
            if ("POST".equals(routes.get(call.route()))) {
                checkReady();
            }
            service.answer(call);
        } catch (ApiException e) {
            call.send(e);
        } catch (IOException e) { // the client has gone
            call.callback().failed(e);
        } catch (RuntimeException | Error e) {
            if (e instanceof RankFailedException || e instanceof JobFailedException) {
                fail((RuntimeException) e);
            } else {
                logger.error("A request has failed", e);
            }
            call.send(new ApiException(500, null, "failed", FAILED + e.getMessage()));
        }
    }

    private void checkMethod(Request request, Response response, String path, String route) {
        String method = routes.get(route);
        if (method == null) {
            throw new ApiException(404, null, "not_found", "There is no " + path + " here");
        }
        String given = request.getMethod();
        if (!given.equals(method) && !(given.equals("HEAD") && method.equals("GET"))) {
            response.getHeaders().put(HttpHeader.ALLOW, method);
            throw new ApiException(
                    405, null, null, "Use " + method + " for " + route + ", not " + given);
        }
    }

    /** Checks that the client may use the server. */
    private void checkKey(Request request, String path) {
        if (apiKey != null && !WITHOUT_KEY.contains(path)) {
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

    private static void send(ApiException e, Response response, Callback callback) {
        String error = e.toJson().toString();
        if (e == GONE) {
            response.setStatus(e.status());
            callback.succeeded(); // if it failed, Jetty would write an error of status 500
        } else if (response.isCommitted()) {
            Content.Sink.write(response, true, event(e.toJson()), callback);
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
     * Returns an event of a stream.
     *
     * @param json its data
     * @return the event
     */
    public static String event(JsonObject json) {
        return "data: " + json + "\n\n";
    }
}
