package io.djltp.examples.classes;

import ai.djl.modality.Classifications;
import ai.djl.modality.Classifications.Classification;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import io.djltp.classes.ClassData.Row;
import io.djltp.internal.http.ApiException;
import io.djltp.internal.http.Fields;
import io.djltp.internal.http.HttpFront;
import io.djltp.internal.http.HttpFront.Call;
import io.djltp.internal.http.HttpMetrics;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;

/**
 * Serves a classifier over HTTP. {@code POST /predict} takes {@code inputs}, a list, and {@code
 * top}; what waits while a batch is computed makes the next one.
 */
public final class ClassServer implements AutoCloseable {

    private static final int MOST = 100; // classes of an input
    private static final int BATCH = 256; // inputs that are computed together
    private static final int MOST_INPUTS = 1024; // of a request
    private static final Duration GRACE = Duration.ofSeconds(30);
    private static final Duration IDLE = Duration.ofSeconds(60);

    private static final Map<String, String> ROUTES =
            Map.of("/health", "GET", "/metrics", "GET", "/predict", "POST");

    private final Path folder;
    private final int maxQueue;
    private final HttpFront front;
    private final Metrics metrics = new Metrics();
    private final LinkedBlockingQueue<Asked> waiting = new LinkedBlockingQueue<>();
    private final Thread worker = new Thread(this::work, "tp-predict");
    private volatile @Nullable Classifier classifier;
    private volatile boolean over;

    /** What the server has done. */
    private static final class Metrics extends HttpMetrics {

        final LongAdder inputs = new LongAdder();
        final LongAdder batches = new LongAdder();
        final Histogram seconds = new Histogram(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10);

        String text(int waiting) {
            StringBuilder text = requests();
            value(text, "requests_waiting", "gauge", "Requests that wait for a batch", waiting);
            value(text, "inputs_total", "counter", "Inputs that were classified", inputs);
            value(text, "batches_total", "counter", "Batches of inputs", batches);
            histogram(text, "predict_seconds", "From the request to its answer", seconds);
            return text.toString();
        }
    }

    /** The inputs of a request, and their classes to come. */
    private record Asked(List<Row> rows, CompletableFuture<List<Classifications>> answer) {}

    /**
     * Creates a server that does not listen yet.
     *
     * @param folder the folder of the classifier
     * @param host the address
     * @param port the port, 0 for any
     * @param apiKey the key that requests must have, or {@code null}
     * @param maxQueue how many requests may wait, beside the one whose batch is computed
     */
    public ClassServer(Path folder, String host, int port, @Nullable String apiKey, int maxQueue) {
        this.folder = folder;
        this.maxQueue = maxQueue;
        front = new HttpFront(host, port, apiKey, IDLE, ROUTES, it -> it, metrics, this::answer);
    }

    /**
     * Listens, and loads the classifier. Until it is loaded, requests get status 503.
     *
     * @return the classifier
     * @throws IOException if the server cannot listen, or a file cannot be read
     */
    public Classifier start() throws IOException {
        try {
            front.listen();
            Classifier loaded = Classifier.load(folder, MOST);
            classifier = loaded;
            worker.start();
            front.setReady(maxQueue);
            return loaded;
        } catch (IOException | RuntimeException e) {
            close();
            throw e;
        }
    }

    /**
     * Returns the port.
     *
     * @return the port that the server listens on
     */
    public int getPort() {
        return front.getPort();
    }

    /**
     * Waits until the server is closed.
     *
     * @throws InterruptedException if the thread is interrupted
     */
    public void await() throws InterruptedException {
        front.await();
    }

    private void answer(Call call) {
        if (call.route().equals("/metrics")) {
            call.send(HttpMetrics.TYPE, metrics.text(waiting.size()));
            return;
        }
        long begin = System.nanoTime();
        Fields fields = Fields.parse(call.body()).only("inputs", "top");
        int top = (int) fields.integer("top", 1, MOST, 5);
        JsonElement inputs = fields.required("inputs");
        List<Row> rows;
        try {
            rows = Row.ofJson(loaded().getFeatures(), inputs);
        } catch (IllegalArgumentException e) {
            throw ApiException.of("inputs", "%s", e.getMessage());
        }
        if (rows.size() > MOST_INPUTS) {
            throw ApiException.of("inputs", "%s inputs, at most %s", rows.size(), MOST_INPUTS);
        }
        front.admit(1, 1 + maxQueue, call.request());
        Asked asked = new Asked(rows, new CompletableFuture<>());
        waiting.add(asked);
        try {
            call.send(HttpFront.JSON, json(asked.answer.join(), top).toString());
        } catch (CompletionException e) {
            if (e.getCause() instanceof ApiException error) {
                throw error;
            }
            throw e;
        }
        metrics.seconds.add((System.nanoTime() - begin) / 1e9);
    }

    private static JsonObject json(List<Classifications> answers, int top) {
        JsonArray predictions = new JsonArray();
        for (Classifications each : answers) {
            JsonArray labels = new JsonArray();
            for (Classification best : each.<Classification>topK(top)) {
                JsonObject label = new JsonObject();
                label.addProperty("label", best.getClassName());
                label.addProperty("score", best.getProbability());
                labels.add(label);
            }
            predictions.add(labels);
        }
        JsonObject all = new JsonObject();
        all.add("predictions", predictions);
        return all;
    }

    /** Classifies what waits, a batch after another. */
    private void work() {
        while (!over || !waiting.isEmpty()) {
            try {
                Asked first = waiting.poll(100, TimeUnit.MILLISECONDS);
                if (first != null) {
                    predict(batch(first));
                }
            } catch (InterruptedException e) {
                return;
            }
        }
    }

    /** Returns the requests that are computed together with the first. */
    private List<Asked> batch(Asked first) {
        List<Asked> batch = new ArrayList<>(List.of(first));
        int inputs = first.rows.size();
        for (Asked next = waiting.peek(); next != null; next = waiting.peek()) {
            inputs += next.rows.size();
            if (inputs > BATCH) {
                break;
            }
            batch.add(waiting.remove());
        }
        return batch;
    }

    private void predict(List<Asked> batch) {
        List<Row> rows = batch.stream().flatMap(each -> each.rows.stream()).toList();
        try {
            List<Classifications> answers = new ArrayList<>();
            for (int from = 0; from < rows.size(); from += BATCH) {
                int to = Math.min(rows.size(), from + BATCH);
                answers.addAll(loaded().predict(rows.subList(from, to)));
                metrics.batches.increment();
                metrics.inputs.add(to - from);
            }
            int from = 0;
            for (Asked each : batch) {
                each.answer.complete(answers.subList(from, from + each.rows.size()));
                from += each.rows.size();
            }
        } catch (IllegalArgumentException | ArithmeticException e) { // of the inputs of a request
            if (batch.size() == 1) {
                batch.get(0)
                        .answer
                        .completeExceptionally(ApiException.of("inputs", "%s", e.getMessage()));
            } else {
                batch.forEach(each -> predict(List.of(each)));
            }
        } catch (RuntimeException | Error e) {
            batch.forEach(each -> each.answer.completeExceptionally(e));
        }
    }

    private Classifier loaded() {
        Classifier loaded = classifier;
        if (loaded == null) {
            throw new IllegalStateException("The classifier is not loaded");
        }
        return loaded;
    }

    /** Stops: new requests get status 503, running ones have time to finish. */
    @Override
    public void close() {
        ApiException end = new ApiException(503, null, "shutting_down", "The server ends");
        front.close(
                GRACE,
                () -> waiting.forEach(each -> each.answer.completeExceptionally(end)),
                this::free);
    }

    private void free() throws InterruptedException {
        over = true;
        worker.join(GRACE.toMillis());
        Classifier loaded = classifier;
        if (loaded != null) {
            loaded.close();
        }
    }
}
