package io.djltp.llm.serve;

import ai.djl.util.Utils;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import io.djltp.internal.http.Fields;
import io.djltp.llm.Generation;
import io.djltp.llm.GenerationOptions;
import io.djltp.llm.Generator;
import io.djltp.rank.RankFailedException;
import io.djltp.testing.Refusals;
import io.djltp.testing.Unchecked;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;

/** The server over sockets: what it answers, and to whom not. */
public class ModelServerTest {

    private static final String COMPLETIONS = "/v1/completions";
    private static final String CHAT = "/v1/chat/completions";

    /** A request of a text that goes on for long. */
    private static final String LONG =
            "{'prompt': 'hello', 'max_tokens': 500, 'ignore_eos': true, 'temperature': 0}";

    private ServedModel served;

    @BeforeMethod(firstTimeOnly = true)
    public void start() throws Exception {
        served = ServedModel.start(2, 4, builder -> builder.optMaxQueue(64));
    }

    @AfterMethod(lastTimeOnly = true, alwaysRun = true)
    public void stop() {
        served.close();
    }

    /** A completion is what the generator generates, whole and as events. */
    @Test(timeOut = 60_000)
    public void completesAsTheGenerator() throws Exception {
        GenerationOptions options =
                served.generator.getDefaults().toBuilder()
                        .optMaxTokens(40)
                        .optTemperature(0.9f)
                        .optTopP(0.9f)
                        .optSeed(3)
                        .build();
        Generation expected =
                served.generator.generate(List.of("hello", "hello", "a", "a"), options);
        expected.finish();
        String fields =
                "'model': 'small', 'prompt': ['hello', 'a'], 'n': 2, 'max_tokens': 40, 'seed': 3,"
                        + " 'temperature': 0.9, 'top_p': 0.9, 'user': 'me'";
        JsonObject whole = served.ask(COMPLETIONS, "{" + fields + "}");
        Assert.assertEquals(whole.getAsJsonArray("choices").size(), 4);
        String[] texts = new String[4];
        for (int i = 0; i < 4; i++) {
            JsonObject choice = whole.getAsJsonArray("choices").get(i).getAsJsonObject();
            Assert.assertEquals(choice.get("index").getAsInt(), i);
            Assert.assertEquals(choice.get("text").getAsString(), expected.getText(i));
            texts[i] = "";
        }
        HttpResponse<String> stream =
                served.post(
                        COMPLETIONS,
                        "{"
                                + fields
                                + ", 'stream': true, 'stream_options': {'include_usage': true}}");
        Assert.assertEquals(
                stream.headers().firstValue("Content-Type").orElse(""),
                "text/event-stream; charset=utf-8");
        List<String> events = List.of(stream.body().split("\n\n"));
        Assert.assertEquals(events.get(events.size() - 1), "data: [DONE]");
        int ended = 0;
        for (String event : events.subList(0, events.size() - 2)) {
            JsonObject chunk = JsonParser.parseString(event.substring(6)).getAsJsonObject();
            Assert.assertTrue(chunk.get("usage").isJsonNull());
            JsonObject choice = chunk.getAsJsonArray("choices").get(0).getAsJsonObject();
            texts[choice.get("index").getAsInt()] += choice.get("text").getAsString();
            ended += choice.get("finish_reason").isJsonNull() ? 0 : 1;
        }
        Assert.assertEquals(ended, 4);
        for (int i = 0; i < 4; i++) {
            Assert.assertEquals(texts[i], expected.getText(i));
        }
        String last = events.get(events.size() - 2).substring(6);
        JsonObject usage = JsonParser.parseString(last).getAsJsonObject().getAsJsonObject("usage");
        Assert.assertEquals(usage, whole.get("usage"));
        int prompts = expected.getPromptIds(0).length + expected.getPromptIds(2).length;
        Assert.assertEquals(usage.get("prompt_tokens").getAsInt(), prompts);
    }

    /** The stop strings of the model's folder end a text, unless a request has its own. */
    @Test(timeOut = 60_000)
    public void endsAtTheStopStringsOfTheModel() throws Exception {
        String request = "{'prompt': 'hello', 'max_tokens': 20, 'temperature': 0%s}";
        String text = text(served, request.formatted(""));
        Path folder = ServedModel.write(2, 20, 600);
        String stops = new Gson().toJson(Map.of("stop_strings", text.substring(3, 5)));
        Files.writeString(folder.resolve("generation_config.json"), stops);
        try (ServedModel other = ServedModel.start(folder, 2, 4, builder -> {})) {
            String cut = text.substring(0, text.indexOf(text.substring(3, 5)));
            Assert.assertEquals(text(other, request.formatted("")), cut);
            for (String none : List.of("'not there'", "[]")) {
                Assert.assertEquals(text(other, request.formatted(", 'stop': " + none)), text);
            }
        }
    }

    private static String text(ServedModel served, String request) throws Exception {
        JsonObject answer = served.ask(COMPLETIONS, request);
        JsonObject choice = answer.getAsJsonArray("choices").get(0).getAsJsonObject();
        return choice.get("text").getAsString();
    }

    /** A prompt is a string or ids, alone or in a list. */
    @Test(timeOut = 60_000)
    public void promptsAreTextOrIds() throws Exception {
        String ids = Arrays.toString(served.generator.encode("hello you"));
        String others = Arrays.toString(served.generator.encode("a"));
        Set<String> texts = new HashSet<>();
        for (String prompt :
                List.of(
                        "'hello you'",
                        "['hello you']",
                        ids,
                        "[" + ids + "]",
                        "['hello you', 'a']",
                        "[" + ids + ", " + others + "]")) {
            String body = "{'temperature': 0, 'max_completion_tokens': 9, 'prompt': " + prompt;
            texts.add(served.ask(COMPLETIONS, body + "}").getAsJsonArray("choices").get(0) + "");
        }
        Assert.assertEquals(texts.size(), 1, texts.toString());
    }

    @DataProvider
    public static Object[][] wrong() {
        String many = "[" + "1,".repeat(700) + "1]";
        String text = "tell ".repeat(600_000);
        String prompts =
                "'prompt' must be a string, a list of strings, a list of token ids, or a list of"
                        + " such lists";
        return new Object[][] {
            {COMPLETIONS, "", 400, "not JSON at $"},
            {COMPLETIONS, "[]", 400, "not a JSON object"},
            {COMPLETIONS, "{} {}", 400, "not JSON at $"},
            {COMPLETIONS, "{'prompt': 'a', }", 400, "not JSON at $.prompt"},
            {COMPLETIONS, "[".repeat(10_000), 400, "not JSON at $"},
            {COMPLETIONS, "{'a':".repeat(10_000), 400, "not JSON at $"},
            {COMPLETIONS, "{}", 400, "'prompt' is missing"},
            {COMPLETIONS, "{'prompt': ''}", 400, "A prompt has no tokens"},
            {COMPLETIONS, "{'prompt': []}", 400, "must have 1 to "},
            {COMPLETIONS, "{'prompt': [[]]}", 400, "A prompt has no tokens"},
            {COMPLETIONS, "{'prompt': [999]}", 400, "The id 999 of the prompt is none of 263"},
            {COMPLETIONS, "{'prompt': [-1]}", 400, "'prompt' must be an integer from 0"},
            {COMPLETIONS, "{'prompt': [1.5]}", 400, "'prompt' must be an integer from 0"},
            {COMPLETIONS, "{'prompt': [1, 'a']}", 400, prompts + ", not \"a\""},
            {COMPLETIONS, "{'prompt': {}}", 400, prompts + ", not {}"},
            {COMPLETIONS, "{'prompt': 5}", 400, prompts + ", not 5"},
            {COMPLETIONS, "{'prompt': ['a', 5]}", 400, prompts + ", not 5"},
            {COMPLETIONS, "{'prompt': [[1], [[2]]]}", 400, prompts + ", not [2]"},
            {COMPLETIONS, "{'prompt': '" + text + "'}", 400, "has 3000000 bytes, which are 428572"},
            {
                CHAT,
                "{'messages': [{'role': 'user', 'content': '" + text + "'}]}",
                400,
                "and the generator has room for 600"
            },
            {COMPLETIONS, "{'prompt': '\\ud800'}", 400, "half of a surrogate pair"},
            {COMPLETIONS, "{'prompt': " + many + "}", 400, "room for 600 tokens"},
            {COMPLETIONS, "{'prompt': 'a', 'max_tokens': 600}", 400, "room for 600 tokens"},
            {COMPLETIONS, "{'prompt': 'a', 'max_tokens': 0}", 400, "an integer from 1 to"},
            {COMPLETIONS, "{'prompt': 'a', 'max_tokens': 1e99}", 400, "an integer from 1 to"},
            {COMPLETIONS, "{'prompt': 'a', 'temperature': -1}", 400, "The temperature must be"},
            {COMPLETIONS, "{'prompt': 'a', 'temperature': 1e999}", 400, "The temperature must"},
            {COMPLETIONS, "{'prompt': 'a', 'temperature': 'b'}", 400, "must be a number"},
            {COMPLETIONS, "{'prompt': 'a', 'top_p': 0}", 400, "(top-p) must be above 0"},
            {COMPLETIONS, "{'prompt': 'a', 'top_k': -2}", 400, "'top_k' must be an integer"},
            {COMPLETIONS, "{'prompt': 'a', 'min_p': 2}", 400, "(min-p) must be from 0"},
            {COMPLETIONS, "{'prompt': 'a', 'n': 69}", 400, "'n' must be an integer from 1"},
            {COMPLETIONS, "{'prompt': ['a', 'b'], 'n': 60}", 400, "for 120 texts"},
            {COMPLETIONS, "{'prompt': 'a', 'seed': 1.5}", 400, "'seed' must be an integer"},
            {COMPLETIONS, "{'prompt': 'a', 'stop': ['']}", 400, "must have a character"},
            {
                COMPLETIONS,
                "{'prompt': 'a', 'stop': [1]}",
                400,
                "'stop' must be text, a string or a list of strings, not 1"
            },
            {COMPLETIONS, "{'prompt': 'a', 'stop_token_ids': [263]}", 400, "from 0 to 262"},
            {COMPLETIONS, "{'prompt': 'a', 'stream': 1}", 400, "true or false"},
            {COMPLETIONS, "{'prompt': 'a', 'logprobs': 21}", 400, "'logprobs' must be an integer"},
            {
                CHAT,
                "{'messages': [{'role': 'user', 'content': 'a'}], 'top_logprobs': 2}",
                400,
                "'top_logprobs' needs logprobs: true"
            },
            {COMPLETIONS, "{'prompt': 'a', 'echo': true}", 400, "'echo' is not supported"},
            {COMPLETIONS, "{'prompt': 'a', 'best_of': 2}", 400, "'best_of' must be 1"},
            {COMPLETIONS, "{'prompt': 'a', 'presence_penalty': 1}", 400, "not supported"},
            {COMPLETIONS, "{'model': 'other', 'prompt': 'a'}", 404, "no model other"},
            {CHAT, "{}", 400, "'messages' is missing"},
            {CHAT, "{'messages': []}", 400, "must have 1 to"},
            {CHAT, "{'messages': ['a']}", 400, "a list of objects"},
            {CHAT, "{'messages': [{'role': 'tool', 'content': ''}]}", 400, "'role' must be one"},
            {CHAT, "{'messages': [{'role': 'user'}]}", 400, "'content' is missing"},
            {
                CHAT,
                "{'messages': [{'role': 'user', 'content': [{'type': 'image_url'}]}]}",
                400,
                "'type' must be text; \"image_url\" is not supported"
            },
            {CHAT, "{'messages': [], 'tools': [{}]}", 400, "'tools' is not supported"},
            {
                CHAT,
                "{'messages': [], 'response_format': {'type': 'json_object'}}",
                400,
                "'response_format' must be text; \"json_object\" is not"
            },
            {"/v1/embeddings", "{'input': 'a'}", 400, "no such route"},
            {"/v1/other", "{}", 404, "There is no /v1/other"},
            {"/v1/models", "{}", 405, "Use GET"},
        };
    }

    /** Errors have the schema, and the status. */
    @Test(dataProvider = "wrong", timeOut = 60_000)
    public void errorsAreNamed(String path, String body, int status, String message)
            throws Exception {
        assertError(served.post(path, body), status, message);
    }

    private static void assertError(HttpResponse<String> response, int status, String message) {
        Assert.assertEquals(response.statusCode(), status, response.body());
        JsonObject error =
                JsonParser.parseString(response.body()).getAsJsonObject().getAsJsonObject("error");
        Assert.assertEquals(error.keySet().toString(), "[message, type, param, code]");
        String found = error.get("message").getAsString();
        Assert.assertTrue(found.contains(message), found);
    }

    /** An answer with many vectors is made once. */
    @Test
    public void partsOfAnAnswerAreNotCopied() {
        JsonObject part = Fields.json("index", 0, "code", null);
        Assert.assertEquals(part.toString(), "{\"index\":0,\"code\":null}");
        Assert.assertSame(Fields.json("data", part).get("data"), part);
    }

    @Test(timeOut = 60_000)
    public void getsAreAnswered() throws Exception {
        Assert.assertEquals(served.get("/health").body(), "{\"status\":\"ok\"}");
        String model = served.get("/v1/models/small").body();
        Assert.assertEquals(
                served.get("/v1/models").body(), "{\"object\":\"list\",\"data\":[" + model + "]}");
        assertError(served.get("/v1/models/a%2Fb"), 404, "There is no model a/b, only small");
        assertError(served.get(COMPLETIONS), 405, "Use POST");
        assertError(served.get("/"), 404, "There is no / here");
        var text =
                served.request(COMPLETIONS)
                        .header("Content-Type", "text/plain")
                        .POST(BodyPublishers.ofString("{}"))
                        .build();
        assertError(served.client.send(text, BodyHandlers.ofString()), 415, "must be application");
        served.ask(COMPLETIONS, "{'prompt': 'a'}");
        String metrics = served.get("/metrics").body();
        for (String line :
                List.of(
                        "tp_requests_total{route=\"/health\",status=\"200\"} ",
                        "tp_time_to_first_token_seconds_bucket{le=\"+Inf\"} ",
                        "tp_time_per_token_seconds_count ",
                        "tp_memory_bytes{rank=\"1\"} ",
                        "tp_texts_running 0\n")) {
            Assert.assertTrue(metrics.contains("\n" + line), line + " in " + metrics);
        }
    }

    @DataProvider
    public static Object[][] longBodies() {
        Map<String, String> json = Map.of("Content-Type", "application/json");
        return new Object[][] {
            {COMPLETIONS, 5, json, 413, "more than 4194304 bytes"},
            {COMPLETIONS, 20, json, 413, "more than 4194304 bytes"},
            {COMPLETIONS, 20, Map.of(), 415, "must be application"},
            {"/v1/other", 20, json, 404, "There is no /v1/other"},
            {"/v1/models", 20, json, 405, "Use GET"},
        };
    }

    /** A client that listens only after it has sent a long body sees the error. */
    @Test(dataProvider = "longBodies", timeOut = 60_000)
    public void errorsOfLongBodiesAreRead(
            String path, int mebibytes, Map<String, String> headers, int status, String message)
            throws Exception {
        byte[] body = "a".repeat(mebibytes << 20).getBytes(StandardCharsets.US_ASCII);
        BodyPublisher known = BodyPublishers.ofByteArray(body);
        BodyPublisher chunked = BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(body));
        for (int i = 0; i < 20; i++) {
            HttpRequest.Builder request = served.request(path).POST(i % 2 == 0 ? known : chunked);
            headers.forEach(request::header);
            assertError(send(request.build()), status, message);
        }
    }

    /** A client that asks before it sends a long body gets the error instead of leave to send. */
    @Test(timeOut = 60_000)
    public void aLongBodyIsNotAskedFor() throws Exception {
        try (Socket socket = new Socket("127.0.0.1", served.server.getPort())) {
            String head = new String(raw(""), StandardCharsets.US_ASCII);
            String asking = head.replace("Length: 0", "Length: 5000000\r\nExpect: 100-continue");
            socket.getOutputStream().write(asking.getBytes(StandardCharsets.US_ASCII));
            byte[] answer = socket.getInputStream().readAllBytes();
            Assert.assertTrue(
                    new String(answer, StandardCharsets.UTF_8).startsWith("HTTP/1.1 413"));
        }
    }

    /** 64 connections at once: all get their texts, one after another in a batch of 4. */
    @Test(timeOut = 120_000)
    public void aBurstIsAnswered() throws Exception {
        String body = "{'prompt': 'hello', 'max_tokens': 30, 'seed': 5, 'temperature': 1}";
        String expected = served.ask(COMPLETIONS, body).get("choices").toString();
        List<CompletableFuture<HttpResponse<String>>> all = new ArrayList<>();
        for (int i = 0; i < 64; i++) {
            all.add(
                    served.client.sendAsync(
                            served.posting(COMPLETIONS, body), BodyHandlers.ofString()));
        }
        for (CompletableFuture<HttpResponse<String>> each : all) {
            Assert.assertEquals(each.get().statusCode(), 200, each.get().body());
            JsonObject json = JsonParser.parseString(each.get().body()).getAsJsonObject();
            Assert.assertEquals(json.get("choices").toString(), expected);
        }
    }

    /** Requests that begin alike and come at once compute that once, which the figures say. */
    @Test(timeOut = 60_000)
    public void aSharedPrefixIsComputedOnce() throws Exception {
        String text = "{'max_tokens': 2, 'temperature': 0, 'prompt': '" + "abcdefghi ".repeat(40);
        double given = served.metric("prompt_tokens_total");
        double reused = served.metric("reused_tokens_total");
        List<CompletableFuture<HttpResponse<String>>> all = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            HttpRequest request = served.posting(COMPLETIONS, text + i + "'}");
            all.add(served.client.sendAsync(request, BodyHandlers.ofString()));
        }
        for (CompletableFuture<HttpResponse<String>> each : all) {
            Assert.assertEquals(each.get().statusCode(), 200, each.get().body());
        }
        Assert.assertEquals(served.metric("prompt_tokens_total") - given, 4 * 401);
        Assert.assertEquals(served.metric("reused_tokens_total") - reused, 3 * 400);
    }

    /** More than wait: 429, and the others get their texts. */
    @Test(timeOut = 60_000)
    public void aFullQueueIsSaid() throws Exception {
        Path slow = ServedModel.write(4, 64, 2048);
        try (ServedModel own = ServedModel.start(slow, 1, 1, builder -> builder.optMaxQueue(2))) {
            Generation before = own.generator.generate("a", slow(own));
            before.next();
            List<CompletableFuture<HttpResponse<String>>> all = new ArrayList<>();
            for (int i = 0; i < 12; i++) {
                HttpRequest brief = own.posting(COMPLETIONS, LONG.replace("500", "3"));
                all.add(own.client.sendAsync(brief, BodyHandlers.ofString()));
            }
            while (all.stream().filter(CompletableFuture::isDone).count() < 9) {
                Thread.sleep(2);
            }
            before.close();
            int full = 0;
            for (CompletableFuture<HttpResponse<String>> each : all) {
                if (each.get().statusCode() == 429) {
                    assertError(each.get(), 429, "Too many requests wait");
                    Assert.assertEquals(each.get().headers().firstValue("Retry-After").get(), "1");
                    full++;
                } else {
                    Assert.assertEquals(each.get().statusCode(), 200, each.get().body());
                }
            }
            Assert.assertEquals(full, 9);
            Assert.assertEquals(own.metric("queue_full_total"), full);
        }
    }

    @DataProvider
    public static Object[][] streams() {
        return new Object[][] {{false, false}, {true, false}, {false, true}, {true, true}};
    }

    /**
     * A client that goes away ends its text, running or waiting, and the next one has its place.
     */
    @Test(dataProvider = "streams", timeOut = 60_000)
    public void aLostClientEndsItsText(boolean stream, boolean waiting) throws Exception {
        Path slow = ServedModel.write(4, 64, 2048); // its text ends after the server has looked
        try (ServedModel own = ServedModel.start(slow, 1, 1, builder -> builder.optMaxQueue(9))) {
            String body =
                    LONG.replace("500", "2000")
                            .replace("}", ", 'stream': " + stream + "}")
                            .replace('\'', '"');
            Generation other = waiting ? own.generator.generate("a", slow(own)) : null;
            if (other != null) {
                other.next();
            }
            try (Socket socket = new Socket("127.0.0.1", own.server.getPort())) {
                socket.getOutputStream().write(raw(body));
                awaitBegun(own, 1);
            }
            if (other != null) {
                awaitTexts(own.generator, 1);
                other.close();
            }
            awaitTexts(own.generator, 0);
            own.ask(COMPLETIONS, "{'prompt': 'a'}");
            String lost = "requests_total{route=\"/v1/completions\",status=\"499\"}";
            while (own.metric(lost) != 1) { // counted after the places are free
                Thread.sleep(2);
            }
        }
    }

    private static GenerationOptions slow(ServedModel own) {
        return own.generator.getDefaults().toBuilder()
                .optMaxTokens(2000)
                .optStopTokens(List.of())
                .build();
    }

    private static byte[] raw(String body) {
        String head =
                "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type:"
                        + " application/json\r\nContent-Length: ";
        return (head + body.length() + "\r\n\r\n" + body).getBytes(StandardCharsets.US_ASCII);
    }

    /** Waits until so many texts after "hello" have begun, some of which may have ended. */
    private static void awaitBegun(ServedModel own, int count) throws Exception {
        while (own.metric("prompt_tokens_total") < count) { // of a token each
            Thread.sleep(2);
        }
    }

    private static void awaitTexts(Generator generator, int count) throws Exception {
        while (generator.getRunning() + generator.getWaiting() != count) {
            Thread.sleep(2);
        }
    }

    /** It listens before the model is there; and a key is asked for. */
    @Test(timeOut = 60_000)
    public void loadsWhileItListens() throws Exception {
        Path folder = ServedModel.write(1, 20, 40);
        CountDownLatch begun = new CountDownLatch(1);
        CountDownLatch loading = new CountDownLatch(1);
        ModelServer.Builder builder = ModelServer.builder().optName("slow").optApiKey("secret");
        builder.setGenerator(
                () -> {
                    begun.countDown();
                    loading.await();
                    return ServedModel.generator(folder, 1, 1);
                });
        try (ModelServer server = builder.build()) {
            CompletableFuture<Void> started = CompletableFuture.runAsync(() -> start(server));
            begun.await();
            String url = "http://127.0.0.1:" + server.getPort();
            HttpRequest.Builder post =
                    HttpRequest.newBuilder(URI.create(url + COMPLETIONS))
                            .header("Content-Type", "application/json")
                            .POST(BodyPublishers.ofString("{\"prompt\": \"a\"}"));
            HttpRequest health = HttpRequest.newBuilder(URI.create(url + "/health")).build();
            assertError(send(health), 503, "being loaded");
            assertError(send(post.build()), 401, "Authorization: Bearer KEY");
            post.header("Authorization", "Bearer secret");
            assertError(send(post.build()), 503, "being loaded");
            Assert.assertEquals(
                    send(post.build()).headers().firstValue("Retry-After").orElse(""), "1");
            loading.countDown();
            started.get();
            Assert.assertEquals(send(health).statusCode(), 200);
            Assert.assertEquals(send(post.build()).statusCode(), 200);
            post.setHeader("Authorization", "Bearer secret2");
            assertError(send(post.build()), 401, "missing or wrong");
        } finally {
            Utils.deleteQuietly(folder);
        }
    }

    private static void start(ModelServer server) {
        Unchecked.run(() -> server.start());
    }

    private HttpResponse<String> send(HttpRequest request) throws Exception {
        return served.client.send(request, BodyHandlers.ofString());
    }

    /** At the end, running texts have a time to finish; others get 503, and the late ones too. */
    @Test(timeOut = 150_000)
    public void endsWithGrace() throws Exception {
        for (Duration grace : List.of(Duration.ofMinutes(2), Duration.ZERO)) {
            Path narrow = ServedModel.write(2, 20, 2048);
            ServedModel own = ServedModel.start(narrow, 1, 1, builder -> builder.optGrace(grace));
            List<CompletableFuture<HttpResponse<String>>> all = new ArrayList<>();
            String text = LONG.replace("500", grace.isZero() ? "2000" : "300");
            String stream = text.replace("}", ", 'stream': true}");
            for (String body : List.of(text, stream, text)) {
                all.add(
                        own.client.sendAsync(
                                own.posting(COMPLETIONS, body), BodyHandlers.ofString()));
            }
            awaitBegun(own, 3);
            CompletableFuture<Void> closed = CompletableFuture.runAsync(own::close);
            own.server.await();
            closed.get();
            for (CompletableFuture<HttpResponse<String>> each : all) {
                HttpResponse<String> response = each.get();
                if (!grace.isZero()) {
                    Assert.assertEquals(response.statusCode(), 200, response.body());
                } else if (response.statusCode() == 200) {
                    String events = response.body();
                    Assert.assertTrue(events.endsWith("\"code\":\"shutting_down\"}}\n\n"), events);
                } else {
                    assertError(response, 503, "The server ends");
                }
            }
        }
    }

    /** When a rank fails, all get an error, and the server's end is that failure. */
    @Test(timeOut = 60_000)
    public void aFailedRankIsSaid() throws Exception {
        Path slow = ServedModel.write(4, 64, 2048);
        try (ServedModel own = ServedModel.start(slow, 2, 2, builder -> builder.optMaxQueue(9))) {
            List<CompletableFuture<HttpResponse<String>>> all = new ArrayList<>();
            for (int i = 0; i < 3; i++) {
                HttpRequest request = own.posting(COMPLETIONS, LONG.replace("500", "2000"));
                all.add(own.client.sendAsync(request, BodyHandlers.ofString()));
            }
            awaitBegun(own, 3);
            Files.write(own.folder.resolve("model.safetensors"), new byte[8]); // rows are read
            for (CompletableFuture<HttpResponse<String>> each : all) {
                assertError(each.get(), 500, "The model has failed: ");
            }
            assertError(own.post(COMPLETIONS, LONG), 503, "The model has failed: ");
            assertError(own.get("/health"), 503, "The model has failed: ");
            Assert.expectThrows(RankFailedException.class, own.server::await);
        }
    }

    /** A client that sends or takes nothing is dropped; one that waits for its text is not. */
    @Test(timeOut = 60_000)
    public void idleClientsAreDropped() throws Exception {
        Duration idle = Duration.ofSeconds(1);
        try (ServedModel own = ServedModel.start(1, 1, builder -> builder.optIdleTimeout(idle))) {
            byte[] request = raw(LONG.replace('\'', '"'));
            try (Socket slow = new Socket("127.0.0.1", own.server.getPort())) {
                slow.getOutputStream().write(request, 0, request.length - 1);
                byte[] answer = slow.getInputStream().readAllBytes();
                String text = new String(answer, StandardCharsets.UTF_8);
                Assert.assertTrue(text.contains("The body has not come"), text);
            }
            Generation other = own.generator.generate("a", slow(own));
            other.next();
            CompletableFuture<HttpResponse<String>> waiting =
                    own.client.sendAsync(
                            own.posting(COMPLETIONS, "{'prompt': 'a'}"), BodyHandlers.ofString());
            Thread.sleep(3 * idle.toMillis());
            other.close();
            Assert.assertEquals(waiting.get().statusCode(), 200, waiting.get().body());
        }
    }

    /** Bytes that are no HTTP get an error of the schema too. */
    @Test(timeOut = 60_000)
    public void bytesWithoutHttpGetAnError() throws Exception {
        for (String text :
                List.of(
                        "nonsense\r\n\r\n",
                        "GET / HTTP/7.0\r\n\r\n",
                        "GET /%zz HTTP/1.1\r\n\r\n")) {
            try (Socket socket = new Socket("127.0.0.1", served.server.getPort())) {
                socket.getOutputStream().write(text.getBytes(StandardCharsets.US_ASCII));
                socket.shutdownOutput();
                String answer =
                        new String(socket.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
                Assert.assertTrue(answer.matches("(?s)HTTP/1.1 [45].*"), answer);
                Assert.assertTrue(answer.contains("{\"error\":{\"message\":"), answer);
            }
        }
    }

    @Test
    public void wrongSettingsThrow() throws Exception {
        ModelServer.Builder builder = ModelServer.builder();
        Refusals.throwsArgument(builder::build);
        Refusals.throwsArgument(() -> builder.optPort(65536));
        Refusals.throwsArgument(() -> builder.optMaxQueue(-1));
        Refusals.throwsArgument(() -> builder.optApiKey(" "));
        try (ModelServer server = ModelServer.builder().setPath(Path.of("none")).build()) {
            Assert.expectThrows(IOException.class, server::start);
        }
        int port = served.server.getPort();
        builder.setPath(served.folder).optPort(port);
        try (ModelServer server = builder.build()) {
            Assert.expectThrows(IOException.class, server::start);
        }
    }
}
