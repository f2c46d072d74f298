package io.djltp.llm.serve;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.File;
import java.io.IOException;
import java.net.Socket;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Many requests at once: good, wrong and given up. */
public class ServerLoadTest {

    private static final String COMPLETIONS = "/v1/completions";
    private static final String GOOD =
            "{'prompt': 'hello', 'max_tokens': 6, 'temperature': 1, 'seed': 4, 'n': 1,"
                    + " 'stop': ['xyz'], 'stream': false, 'top_p': 0.9}";
    private static final List<String> VALUES =
            List.of(
                    "null",
                    "true",
                    "-1",
                    "0",
                    "1e400",
                    "99999999999999999999",
                    "'a'",
                    "[]",
                    "{}",
                    "[[]]",
                    "[null]",
                    "'\\u0000'",
                    "1.5",
                    "-0",
                    "[1, [2]]",
                    "{'a': 'b'}");

    /** Runs a task for each number from 0, on some threads. */
    private static void run(int count, int threads, Task task) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        try {
            List<Callable<Void>> tasks = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                int number = i;
                tasks.add(
                        () -> {
                            task.run(number);
                            return null;
                        });
            }
            for (Future<Void> each : pool.invokeAll(tasks)) {
                each.get();
            }
        } finally {
            pool.shutdownNow();
        }
    }

    private interface Task {
        void run(int number) throws Exception;
    }

    /** 1,000 malformed requests among 250 good ones. */
    @Test(timeOut = 180_000)
    public void malformedRequestsGetErrors() throws Exception {
        try (ServedModel served = ServedModel.start(2, 4, builder -> builder.optMaxQueue(64))) {
            String expected = served.ask(COMPLETIONS, GOOD).get("choices").toString();
            run(
                    1250,
                    6,
                    i -> {
                        if (i % 5 == 0) {
                            JsonObject answer = served.ask(COMPLETIONS, GOOD);
                            Assert.assertEquals(answer.get("choices").toString(), expected);
                        } else if (i % 5 == 1) {
                            sendBytes(served, new Random(i));
                        } else {
                            sendWrong(served, new Random(i));
                        }
                    });
            Assert.assertEquals(served.get("/health").statusCode(), 200);
            Assert.assertEquals(served.generator.getRunning(), 0);
        }
    }

    private static void sendWrong(ServedModel served, Random random) throws Exception {
        String body = wrong(random).replace('\'', '"');
        List<String> paths =
                List.of(
                        "/v1/chat/completions",
                        "/v1/embeddings",
                        "/v1/none",
                        "/",
                        "/v1/models/%41");
        boolean elsewhere = random.nextInt(5) == 0;
        String path = elsewhere ? paths.get(random.nextInt(paths.size())) : COMPLETIONS;
        String method = random.nextInt(8) == 0 ? "DELETE" : "POST";
        HttpRequest request =
                served.request(path)
                        .header("Content-Type", "application/json")
                        .method(method, BodyPublishers.ofString(body))
                        .build();
        HttpResponse<String> response = served.client.send(request, BodyHandlers.ofString());
        int status = response.statusCode();
        if (status == 200 && response.body().endsWith("data: [DONE]\n\n")) {
            return; // it asks for events, and what is wrong had no effect
        }
        JsonObject json = JsonParser.parseString(response.body()).getAsJsonObject();
        boolean answered = status == 200 && json.has("choices"); // what is wrong had no effect
        boolean refused = status >= 400 && status < 500 && json.has("error");
        Assert.assertTrue(
                answered || refused, method + " " + path + " " + body + ": " + response.body());
    }

    /** Returns a body that is mostly not valid. */
    private static String wrong(Random random) {
        StringBuilder body = new StringBuilder(GOOD);
        int at = random.nextInt(body.length() - 1);
        switch (random.nextInt(5)) {
            case 0 -> body.setLength(at);
            case 1 -> body.setCharAt(at, (char) (32 + random.nextInt(96)));
            case 2 -> body.insert(at, "[{".repeat(random.nextInt(2000)));
            case 3 -> body.reverse();
            default -> {
                String[] fields = GOOD.substring(1, GOOD.length() - 1).split(", '");
                String name = fields[random.nextInt(fields.length)].split("'")[0];
                name = name.isEmpty() ? "prompt" : name;
                String value = VALUES.get(random.nextInt(VALUES.size()));
                body.setLength(body.length() - 1);
                body.append(", '").append(name).append("': ").append(value).append('}');
            }
        }
        return body.toString();
    }

    /** Sends bytes that are not HTTP, or a body that is not text. */
    private static void sendBytes(ServedModel served, Random random) throws IOException {
        byte[] bytes = new byte[1 + random.nextInt(300)];
        random.nextBytes(bytes);
        try (Socket socket = new Socket("127.0.0.1", served.server.getPort())) {
            boolean http = random.nextBoolean();
            if (http) {
                String head =
                        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                                + "Content-Type: application/json\r\nContent-Length: ";
                String all = head + bytes.length + "\r\n\r\n";
                socket.getOutputStream().write(all.getBytes(StandardCharsets.US_ASCII));
            }
            socket.getOutputStream().write(bytes);
            socket.shutdownOutput();
            String answer;
            try {
                answer = new String(socket.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            } catch (IOException e) { // closed before all bytes were read
                return;
            }
            Assert.assertTrue(answer.contains("{\"error\":{") || !http && answer.isEmpty(), answer);
        }
    }

    /** Threads, places, files and memory are as before after 2,000 requests. */
    @Test(groups = "sweep", timeOut = 600_000)
    public void nothingLeaks() throws Exception {
        try (ServedModel served = ServedModel.start(2, 4, builder -> builder.optMaxQueue(64))) {
            run(600, 8, i -> mixed(served, i));
            long[] before = counts(served);
            run(2000, 8, i -> mixed(served, i));
            long[] after = counts(served);
            System.out.printf(
                    "2000 requests: threads %d to %d, files %d to %d, heap %,d to %,d, resident"
                            + " %,d to %,d kB%n",
                    before[0], after[0], before[1], after[1], before[2], after[2], before[3],
                    after[3]);
            Assert.assertTrue(after[0] <= before[0] + 4, "threads");
            Assert.assertTrue(after[1] <= before[1] + 4, "files");
            Assert.assertTrue(after[2] < before[2] + (4 << 20), "heap");
            Assert.assertTrue(after[3] < before[3] + 40_000, "resident memory");
        }
    }

    private static void mixed(ServedModel served, int i) throws Exception {
        Random random = new Random(i);
        switch (i % 5) {
            case 0 -> sendBytes(served, random);
            case 1 -> sendWrong(served, random);
            case 2 -> {
                String body = GOOD.replace("false", "true");
                Assert.assertTrue(served.post(COMPLETIONS, body).body().contains("[DONE]"));
            }
            case 3 -> { // goes away
                String body =
                        GOOD.replace("'max_tokens': 6", "'max_tokens': 400")
                                .replace("false", random.nextBoolean() ? "true" : "false")
                                .replace('\'', '"');
                String head =
                        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type:"
                                + " application/json\r\nContent-Length: ";
                String all = head + body.length() + "\r\n\r\n" + body;
                try (Socket socket = new Socket("127.0.0.1", served.server.getPort())) {
                    socket.getOutputStream().write(all.getBytes(StandardCharsets.US_ASCII));
                    Thread.sleep(random.nextInt(20));
                }
            }
            default -> served.ask(COMPLETIONS, GOOD);
        }
    }

    private static long[] counts(ServedModel served) throws Exception {
        while (served.generator.getRunning() + served.generator.getWaiting() > 0) {
            Thread.sleep(10);
        }
        Thread.sleep(500);
        for (int i = 0; i < 3; i++) {
            System.gc();
            Thread.sleep(100);
        }
        Runtime runtime = Runtime.getRuntime();
        String[] files = new File("/proc/self/fd").list();
        long resident =
                Files.readAllLines(Path.of("/proc/self/status")).stream()
                        .filter(line -> line.startsWith("VmRSS:"))
                        .mapToLong(line -> Long.parseLong(line.replaceAll("\\D", "")))
                        .sum();
        long threads =
                Thread.getAllStackTraces().keySet().stream()
                        .map(Thread::getName) // pools grow with their load, up to a limit
                        .filter(name -> !name.matches("(HttpClient-|tp-serve-).*"))
                        .count();
        return new long[] {
            threads,
            files == null ? 0 : files.length,
            runtime.totalMemory() - runtime.freeMemory(),
            resident
        };
    }
}
