package io.djltp.examples.classes;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import io.djltp.classes.ClassData;
import io.djltp.classes.ClassModel;
import io.djltp.classes.TextFeatures;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.io.PrintWriter;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/** 32 clients ask a server of 100,003 classes. */
public class ClassServerLoadTest {

    private static final int CLASSES = 100_003;
    private static final int CLIENTS = 32;
    private static final int REQUESTS = 40; // of a client
    private static final String GOOD = "{\"inputs\": [\"word7 name77\"], \"top\": 5}";

    private final HttpClient client = HttpClient.newHttpClient();
    private final Path folder = TestFolder.create();
    private ClassServer server;

    @BeforeClass(groups = "sweep")
    public void start() throws IOException {
        Path rows = folder.resolve("rows.tsv");
        try (PrintWriter out = new PrintWriter(Files.newBufferedWriter(rows))) {
            for (int i = 0; i < CLASSES; i++) {
                out.print("c" + i + "\tword" + i % 1000 + " name" + i + "\n");
            }
        }
        TextFeatures features = new TextFeatures(1 << 16, 3, 5, 2);
        ClassData data = ClassData.builder(rows).optTextFeatures(features).build();
        try (ClassModel model = ClassModel.builder(data).build()) {
            model.newTrainer(ParallelConfig.tensor(1)).close(); // as it begins
            model.save(folder.resolve("model"));
        }
        server = new ClassServer(folder.resolve("model"), "127.0.0.1", 0, null, 64);
        server.start();
    }

    @AfterClass(alwaysRun = true, groups = "sweep")
    public void stop() {
        if (server != null) {
            server.close();
        }
    }

    private HttpResponse<String> post(String body) throws Exception {
        return client.send(
                HttpRequest.newBuilder(uri("/predict"))
                        .header("Content-Type", "application/json")
                        .POST(BodyPublishers.ofString(body))
                        .build(),
                BodyHandlers.ofString());
    }

    private URI uri(String path) {
        return URI.create("http://127.0.0.1:" + server.getPort() + path);
    }

    private long figure(String name) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(uri("/metrics")).build();
        return client.send(request, BodyHandlers.ofString())
                .body()
                .lines()
                .filter(line -> line.startsWith(name + " "))
                .mapToLong(line -> Long.parseLong(line.substring(name.length() + 1)))
                .sum();
    }

    /** Asks from all clients, and returns the nanoseconds of each request, ascending. */
    private long[] ask() throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(CLIENTS);
        try {
            var clients =
                    pool.invokeAll(
                            IntStream.range(0, CLIENTS)
                                    .<java.util.concurrent.Callable<long[]>>mapToObj(
                                            number -> () -> askAs(number))
                                    .toList());
            LongStream all = LongStream.empty();
            for (Future<long[]> each : clients) {
                all = LongStream.concat(all, Arrays.stream(each.get()));
            }
            return all.sorted().toArray();
        } finally {
            pool.shutdownNow();
        }
    }

    private long[] askAs(int number) throws Exception {
        long[] times = new long[REQUESTS];
        for (int i = 0; i < REQUESTS; i++) {
            long begin = System.nanoTime();
            HttpResponse<String> answer = post(GOOD.replace("77", "" + (number * REQUESTS + i)));
            times[i] = System.nanoTime() - begin;
            Assert.assertEquals(answer.statusCode(), 200, answer.body());
        }
        return times;
    }

    @Test(groups = "sweep", timeOut = 300_000)
    public void manyClientsShareBatches() throws Exception {
        ask(); // loads code
        long inputs = figure("tp_inputs_total");
        long batches = figure("tp_batches_total");
        for (int turn = 0; turn < 3; turn++) {
            long[] times = ask();
            double median = times[times.length / 2] / 1e6;
            double late = times[times.length * 99 / 100] / 1e6;
            System.out.printf(
                    "%d clients, %,d classes: median %.1f ms, 99th percentile %.1f ms, ratio %.2f%n",
                    CLIENTS, CLASSES, median, late, late / median);
        }
        inputs = figure("tp_inputs_total") - inputs;
        batches = figure("tp_batches_total") - batches;
        System.out.printf("%d inputs in %d batches%n", inputs, batches);
        Assert.assertEquals(inputs, 3 * CLIENTS * REQUESTS);
        Assert.assertTrue(batches * 4 < inputs, inputs + " inputs in " + batches + " batches");
    }

    /** 1,000 wrong requests among good ones. */
    @Test(groups = "sweep", timeOut = 300_000)
    public void wrongRequestsGetErrors() throws Exception {
        JsonArray expected = best(JsonParser.parseString(post(GOOD).body()).getAsJsonObject());
        Assert.assertEquals(expected.size(), 5);
        ExecutorService pool = Executors.newFixedThreadPool(CLIENTS);
        try {
            var all =
                    pool.invokeAll(
                            IntStream.range(0, 1250)
                                    .<java.util.concurrent.Callable<Boolean>>mapToObj(
                                            i -> () -> isAnswered(i, expected))
                                    .toList());
            int answered = 0;
            for (Future<Boolean> each : all) {
                answered += each.get() ? 1 : 0;
            }
            Assert.assertTrue(answered < 400, answered + " of 1250 requests are right");
        } finally {
            pool.shutdownNow();
        }
        Assert.assertEquals(post(GOOD).statusCode(), 200);
    }

    private static JsonArray best(JsonObject answer) {
        return answer.getAsJsonArray("predictions").get(0).getAsJsonArray();
    }

    /** Sends a good request or a wrong one, and returns whether it got an answer. */
    private boolean isAnswered(int number, JsonArray expected) throws Exception {
        Random random = new Random(number);
        boolean good = number % 5 == 0;
        StringBuilder body = new StringBuilder(GOOD);
        int at = 1 + random.nextInt(body.length() - 2);
        switch (good ? -1 : random.nextInt(4)) {
            case -1 -> {}
            case 0 -> body.setLength(at);
            case 1 -> body.insert(at, (char) (1 + random.nextInt(30)));
            case 2 -> body.insert(at, "[{".repeat(1 + random.nextInt(2000)));
            default -> body.setLength(0);
        }
        HttpResponse<String> answer = post(body.toString());
        JsonObject json = JsonParser.parseString(answer.body()).getAsJsonObject();
        if (answer.statusCode() == 200) {
            for (int i = 0; good && i < expected.size(); i++) {
                JsonObject right = expected.get(i).getAsJsonObject();
                JsonObject found = best(json).get(i).getAsJsonObject();
                Assert.assertEquals(found.get("label"), right.get("label"), answer.body());
                double score = right.get("score").getAsDouble(); // rounded as its batch is
                Assert.assertEquals(found.get("score").getAsDouble(), score, 1e-5 * score);
            }
            return true;
        }
        Assert.assertTrue(!good && answer.statusCode() == 400 && json.has("error"), answer.body());
        return false;
    }
}
