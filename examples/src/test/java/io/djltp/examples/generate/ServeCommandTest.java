package io.djltp.examples.generate;

import io.djltp.examples.ForkedTp;
import io.djltp.examples.JobVariables;
import io.djltp.examples.TpRun;
import io.djltp.testing.FreePort;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.net.http.HttpResponse.BodySubscribers;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/** The command serves in a process of its own, and in a job of two. */
public class ServeCommandTest {

    private static final String TEXT =
            "{\"prompt\": \"The\", \"max_tokens\": %d, \"ignore_eos\": true, \"stream\": true}";

    private final HttpClient client = HttpClient.newHttpClient();
    private final Path folder = TestFolder.create();
    private Path model;

    @BeforeClass
    public void train() throws IOException {
        model = folder.resolve("small");
        TpRun.languageModel(model, "--context 1600 --batch 1 --steps 1");
    }

    /** Asks for a text, and waits until it has begun. */
    private CompletableFuture<HttpResponse<String>> complete(int port, int tokens)
            throws Exception {
        HttpRequest request =
                HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + "/v1/completions"))
                        .header("Content-Type", "application/json")
                        .POST(BodyPublishers.ofString(TEXT.formatted(tokens)))
                        .build();
        CompletableFuture<Void> begun = new CompletableFuture<>();
        CompletableFuture<HttpResponse<String>> text =
                client.sendAsync(
                        request,
                        headers -> { // which come with the first event
                            begun.complete(null);
                            return BodySubscribers.ofString(StandardCharsets.UTF_8);
                        });
        CompletableFuture.anyOf(begun, text).get();
        return text;
    }

    /** Waits until the server has the model. */
    private void await(ForkedTp process, int port) throws Exception {
        URI health = URI.create("http://127.0.0.1:" + port + "/health");
        HttpRequest request = HttpRequest.newBuilder(health).build();
        while (true) {
            Assert.assertTrue(process.isAlive(), "the server has ended");
            try {
                if (client.send(request, BodyHandlers.ofString()).statusCode() == 200) {
                    return;
                }
            } catch (IOException e) {
                // it does not listen yet
            }
            Thread.sleep(20);
        }
    }

    /** SIGTERM: what runs is finished, and the status is 0. */
    @Test(timeOut = 180_000)
    public void endsWell() throws Exception {
        int port = FreePort.find();
        String line = "serve " + model + " --tp 2 --port " + port;
        try (ForkedTp process = ForkedTp.start(Map.of(), List.of(line.split(" ")))) {
            await(process, port);
            List<CompletableFuture<HttpResponse<String>>> all = new ArrayList<>();
            for (int i = 0; i < 3; i++) {
                all.add(complete(port, 300));
            }
            ForkedTp.Result result = process.stop();
            Assert.assertEquals(result.status(), 0, result.toString());
            Assert.assertTrue(
                    result.out().startsWith("Serving small at http://127.0.0.1:" + port + "/v1\n"),
                    result.out());
            Assert.assertTrue(result.out().contains("2 ranks, float32 weights by"), result.out());
            for (CompletableFuture<HttpResponse<String>> each : all) {
                Assert.assertTrue(each.get().body().endsWith("data: [DONE]\n\n"));
            }
        }
    }

    /** The process of a rank is killed: requests get an error, and the server ends with that. */
    @Test(timeOut = 240_000)
    public void aKilledProcessEndsTheJob() throws Exception {
        int port = FreePort.find();
        String line = "serve " + model + " --tp 2 --timeout 60 --port " + port;
        List<Map<String, String>> job = JobVariables.ofAll(2);
        List<String> words = List.of(line.split(" "));
        try (ForkedTp first = ForkedTp.start(job.get(0), words);
                ForkedTp second = ForkedTp.start(job.get(1), words)) {
            await(first, port);
            CompletableFuture<HttpResponse<String>> text = complete(port, 1500);
            second.kill();
            Assert.assertTrue(text.get().body().contains("{\"error\":"), text.get().body());
            ForkedTp.Result result = first.await();
            Assert.assertEquals(result.status(), 1, result.toString());
            Assert.assertTrue(result.err().contains("tp: the job has ended: "), result.err());
        }
    }

    @DataProvider
    public Object[][] wrong() {
        return new Object[][] {
            {"serve none", "There is no folder none"},
            {"serve @ --port 70000", "The port must be 0 to 65535, not 70000"},
            {"serve @ --queue -1", "The queue must be 0 or more, not -1"},
            {"serve @ --batch 0", "--batch must be greater than 0"},
            {"serve @ --host no.such.host.invalid", "--host no.such.host.invalid is not known"},
            {"serve @ --tp 6 --port 0", "6 ranks are more than the 5 query heads"},
            {"serve @ --adapter none --port 0", "none"},
            {"serve @ --length 9999 --port 0", "The model is made for 1600 positions"},
        };
    }

    @Test(dataProvider = "wrong", timeOut = 60_000)
    public void wrongOptionsAreNamed(String command, String message) {
        TpRun.line(command.replace("@", model.toString())).assertPrints(2, message);
    }
}
