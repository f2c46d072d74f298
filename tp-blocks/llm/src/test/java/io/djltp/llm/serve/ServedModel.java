package io.djltp.llm.serve;

import ai.djl.util.Utils;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import io.djltp.llm.ByteTokenizer;
import io.djltp.llm.Generator;
import io.djltp.llm.RandomFolder;
import io.djltp.rank.ParallelConfig;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.function.Consumer;

/** A server of a small random model, and a client. */
final class ServedModel implements AutoCloseable {

    private static final String TEMPLATE =
            "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ";

    final Path folder;
    final ModelServer server;
    final HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    Generator generator;

    private ServedModel(Path folder, int ranks, int batch, Consumer<ModelServer.Builder> settings)
            throws Exception {
        this.folder = folder;
        ModelServer.Builder builder = ModelServer.builder().optName("small");
        builder.setGenerator(() -> generator = generator(folder, ranks, batch));
        settings.accept(builder);
        server = builder.build();
        server.start();
    }

    /** Starts a server of a model of two narrow layers. */
    static ServedModel start(int ranks, int batch, Consumer<ModelServer.Builder> settings)
            throws Exception {
        return start(write(2, 20, 600), ranks, batch, settings);
    }

    /** Starts a server, which deletes the folder at its end. */
    static ServedModel start(
            Path folder, int ranks, int batch, Consumer<ModelServer.Builder> settings)
            throws Exception {
        return new ServedModel(folder, ranks, batch, settings);
    }

    /** Writes a model with a tokenizer and a chat template. */
    static Path write(int layers, int width, int length) throws IOException {
        Path folder = Files.createTempDirectory("served");
        JsonObject config =
                RandomFolder.config(
                        "llama",
                        "'vocab_size': 263, 'eos_token_id': 262, 'tie_word_embeddings': true,"
                                + " 'max_position_embeddings': "
                                + length);
        config.addProperty("num_hidden_layers", layers);
        config.addProperty("hidden_size", width);
        if (width >= 64) {
            config.addProperty("num_attention_heads", 8);
            config.addProperty("num_key_value_heads", 4);
            config.addProperty("head_dim", width / 8);
            config.addProperty("intermediate_size", 3 * width);
        }
        RandomFolder.write(folder, config, 7);
        ByteTokenizer.write(folder);
        Files.writeString(
                folder.resolve("tokenizer_config.json"),
                new Gson().toJson(Map.of("chat_template", TEMPLATE)));
        return folder;
    }

    static Generator generator(Path folder, int ranks, int batch) throws Exception {
        return Generator.builder()
                .setPath(folder)
                .optConfig(ParallelConfig.tensor(ranks))
                .optBatch(batch)
                .build();
    }

    URI uri(String path) {
        return URI.create("http://127.0.0.1:" + server.getPort() + path);
    }

    HttpRequest.Builder request(String path) {
        return HttpRequest.newBuilder(uri(path)); // a test has a time-out of its own
    }

    /** Returns a request with a body that is written with ' for ". */
    HttpRequest posting(String path, String body) {
        return request(path)
                .header("Content-Type", "application/json")
                .POST(BodyPublishers.ofString(body.replace('\'', '"')))
                .build();
    }

    HttpResponse<String> post(String path, String body) throws Exception {
        return client.send(posting(path, body), BodyHandlers.ofString());
    }

    JsonObject ask(String path, String body) throws Exception {
        HttpResponse<String> response = post(path, body);
        if (response.statusCode() != 200) {
            throw new AssertionError(response.statusCode() + ": " + response.body());
        }
        return JsonParser.parseString(response.body()).getAsJsonObject();
    }

    HttpResponse<String> get(String path) throws Exception {
        return client.send(request(path).build(), BodyHandlers.ofString());
    }

    /** Returns a figure of /metrics, 0 if there is none yet. */
    double metric(String name) throws Exception {
        return get("/metrics")
                .body()
                .lines()
                .filter(line -> line.startsWith("tp_" + name + " "))
                .mapToDouble(line -> Double.parseDouble(line.substring(line.indexOf(' '))))
                .findFirst()
                .orElse(0);
    }

    @Override
    public void close() {
        server.close();
        Utils.deleteQuietly(folder);
    }
}
