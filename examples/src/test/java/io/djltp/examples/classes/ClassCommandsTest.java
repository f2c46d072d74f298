package io.djltp.examples.classes;

import static java.nio.charset.StandardCharsets.US_ASCII;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import io.djltp.classes.ClassModel;
import io.djltp.examples.ForkedTp;
import io.djltp.examples.JobVariables;
import io.djltp.examples.TpRun;
import io.djltp.llm.RandomFolder;
import io.djltp.testing.FreePort;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.io.OutputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Stream;

/** A user's file is trained on, the model judged, asked and served. */
public class ClassCommandsTest {

    private static final int CLASSES = 7;
    private static final int ROWS = 140;
    private static final int CLIENTS = 32;

    private final HttpClient client = HttpClient.newHttpClient();
    private final Path folder = TestFolder.create();

    @BeforeClass
    public void createFolder() throws IOException {
        for (String kind : List.of("text", "tsv", "sparse")) {
            Files.write(folder.resolve(kind), lines(kind));
        }
    }

    /** Row i has the classes i % 7 and, but for TSV, every third 0 too. */
    private static List<String> lines(String kind) {
        List<String> lines = new ArrayList<>();
        if (kind.equals("tsv")) {
            lines.add("name\tshelf");
        }
        for (int i = 0; i < ROWS; i++) {
            int own = i % CLASSES;
            boolean both = i % 3 == 0 && own != 0;
            lines.add(
                    switch (kind) {
                        case "text" ->
                                "__label__c%s%s word%s%s n%s"
                                        .formatted(
                                                own,
                                                both ? " __label__c0" : "",
                                                own,
                                                both ? " zero" : "",
                                                i);
                        case "tsv" -> "book " + own + "-" + i + "\tc" + own;
                        default ->
                                "%s%s %s:2 %s:%s"
                                        .formatted(
                                                both ? "0," : "",
                                                own,
                                                own,
                                                10 + i % 5,
                                                both ? 0.1 : 1.5);
                    });
        }
        return lines;
    }

    @DataProvider
    public Object[][] kinds() {
        return new Object[][] {
            {"text", "--loss one-vs-all", "word3 n1", "\"word3 n1\", \"word5 zero\"", "c3"},
            {"tsv", "--format tsv --fields name,shelf", "book 4-9", "\"book 4-9\"", "c4"},
            {
                "sparse",
                "--loss softmax --head sampled --sample-share 0.9",
                "",
                "{\"ids\": [2, 11], \"values\": [2, 0.5]}",
                "2"
            },
        };
    }

    /** Of a damaged folder, one line says what is wrong. */
    @Test(timeOut = 60_000, dependsOnMethods = "trainedJudgedAskedAndServed")
    public void damagedFoldersAreNamed() throws IOException {
        Path damaged = Files.createDirectory(folder.resolve("damaged"));
        for (String name : List.of("model.json", "model.safetensors", "labels.txt")) {
            Files.copy(folder.resolve("text-model").resolve(name), damaged.resolve(name));
        }
        String evaluate = "evaluate %s --data " + folder.resolve("text");
        for (String command : List.of("predict %s a", evaluate)) {
            Files.deleteIfExists(damaged.resolve("counts.txt"));
            assertIsLine(command.formatted(damaged), "NoSuchFileException: " + damaged);
            Files.writeString(damaged.resolve("counts.txt"), "1\n");
            assertIsLine(command.formatted(damaged), "as many lines as labels.txt, 7, and has 1");
        }
    }

    @Test(timeOut = 60_000, dependsOnMethods = "trainedJudgedAskedAndServed")
    public void oneRowIsJudged() throws IOException {
        Path row = Files.writeString(folder.resolve("row"), "__label__c3 __label__other word3\n");
        TpRun.line("evaluate %s --data %s".formatted(folder.resolve("text-model"), row))
                .assertPrints(0, "1 row with labels, 0 without, 1 label not trained");
    }

    private static void assertIsLine(String command, String text) {
        TpRun run = TpRun.line(command);
        run.assertPrints(1, "tp: ", text);
        Assert.assertFalse(run.output().contains("\tat "), run.output());
    }

    /** A small file is learned in 20 passes, on one rank. */
    @Test(timeOut = 120_000)
    public void whatIsNotSaidSuitsAFile() throws Exception {
        String train = "train --data %s --batch 50 --dim 8 --out %s";
        TpRun run =
                TpRun.withJson(train.formatted(folder.resolve("text"), folder.resolve("not-said")));
        Assert.assertEquals(run.figures().getAsJsonObject().get("ranks").getAsInt(), 1);
        Assert.assertEquals(run.losses().length, 20 * (ROWS / 50 + 1));
        String again =
                train.formatted(folder.resolve("tsv --format tsv"), folder.resolve("not-said"));
        TpRun.line(again).assertPrints(2, "has a trained model: use --overwrite to replace it");
        TpRun.line(again + " --overwrite").assertPrints(0, "The model is saved");
    }

    @Test(dataProvider = "kinds", timeOut = 240_000)
    public void trainedJudgedAskedAndServed(
            String kind, String options, String text, String inputs, String best) throws Exception {
        Path data = folder.resolve(kind);
        Path model = folder.resolve(kind + "-model");
        String train =
                "train --data %s %s --validation %1$s --epochs 40 --batch 23 --dim 16 --tp 2 --out %s";
        TpRun run = TpRun.withJson(train.formatted(data, options, model));
        run.assertPrints(
                0, "140 rows with", "7 classes", "140 rows with labels", "Try: ./tp predict");
        JsonObject judged = run.figures().getAsJsonObject().get("validation").getAsJsonObject();
        Assert.assertTrue(judged.get("p1").getAsDouble() > 0.95, judged.toString());
        Assert.assertEquals(run.losses().length, 40 * (ROWS / 23 + 1));

        String reading = options.replaceAll("--(loss|head|sample-share) \\S+ ?", "");
        TpRun evaluated =
                TpRun.withJson("evaluate %s --data %s %s".formatted(model, data, reading).trim());
        Assert.assertEquals(evaluated.figures(), judged);
        for (String name :
                "p1 p3 p5 r5 ndcg1 ndcg3 ndcg5 psp1 psp3 psp5 micro_f1 macro_f1".split(" ")) {
            double value = judged.get(name).getAsDouble();
            Assert.assertTrue(value > 0 && value <= 1, judged.toString());
        }
        Assert.assertEquals(judged.get("rows").getAsInt(), ROWS);

        if (!text.isEmpty()) {
            TpRun asked = TpRun.of("predict", model.toString(), text, "--top", "2");
            asked.assertPrints(0, text);
            TpRun.of("predict", model.toString(), "").assertPrints(0, "%  c");
            Assert.assertTrue(asked.output().lines().toList().get(1).endsWith("%  " + best));
        }
        String file = kind.equals("tsv") ? " --format tsv --field name" : "";
        TpRun ofFile = TpRun.withJson("predict " + model + " --file " + data + file + " --top 3");
        JsonArray rows = ofFile.figures().getAsJsonArray();
        Assert.assertEquals(rows.size(), ROWS);
        for (int i = 0; i < ROWS; i += 31) {
            String labels = rows.get(i).getAsJsonObject().get("labels").toString();
            Assert.assertTrue(labels.contains(i % CLASSES + "\""), labels);
        }
        serve(model, inputs, best);
    }

    private static String best(JsonArray rows, int row) {
        JsonArray labels = rows.get(row).getAsJsonObject().getAsJsonArray("labels");
        return labels.get(0).getAsJsonObject().get("label").getAsString();
    }

    /** A pair of the filter neither is a label nor takes a place. */
    @Test(timeOut = 120_000)
    public void pairsOfTheFilterDoNotCount() throws Exception {
        List<String> lines = new ArrayList<>(List.of(ROWS + " 20 " + CLASSES));
        List<String> pairs = new ArrayList<>();
        for (int i = 0; i < ROWS; i++) { // each row has two labels, of which the filter has one
            int own = i % CLASSES;
            int other = (own + 1) % CLASSES;
            lines.add("%d,%d %d:1".formatted(own, other, own));
            pairs.add(i + " " + other);
        }
        Path data = Files.write(folder.resolve("xc.txt"), lines);
        Path filter = Files.write(folder.resolve("filter.txt"), pairs);
        Path model = folder.resolve("filtered-model");
        String line = "train --data %s --epochs 30 --batch 20 --dim 8 --tp 1 --out %s";
        TpRun run =
                TpRun.withJson(
                        (line + " --validation %1$s --validation-filter-file %3$s")
                                .formatted(data, model, filter));
        run.assertPrints(0, "140 rows with labels");
        JsonObject judged = run.figures().getAsJsonObject().get("validation").getAsJsonObject();
        Assert.assertEquals(judged.get("p1").getAsDouble(), 1, 1e-6);
        Assert.assertEquals(judged.get("p3").getAsDouble(), 1 / 3., 1e-6);
        TpRun with =
                TpRun.withJson(
                        "evaluate " + model + " --data " + data + " --filter-file " + filter);
        Assert.assertEquals(with.figures(), judged);
        JsonObject without =
                TpRun.withJson("evaluate " + model + " --data " + data).figures().getAsJsonObject();
        Assert.assertEquals(without.get("p3").getAsDouble(), 2 / 3., 1e-6);
    }

    /** Numbers alone are a row of dense features. */
    @Test(timeOut = 120_000)
    public void denseRowsAreServed() throws Exception {
        String header = "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2), }";
        ByteBuffer bytes = ByteBuffer.allocate(128 + 32).order(ByteOrder.LITTLE_ENDIAN);
        bytes.put(new byte[] {(byte) 0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0}).putShort((short) 118);
        bytes.put((header + " ".repeat(117 - header.length()) + "\n").getBytes(US_ASCII));
        for (float each : new float[] {1, 0, 0, 1, -1, 0, 0, -1}) {
            bytes.putFloat(each);
        }
        Path data = Files.write(folder.resolve("vectors.npy"), bytes.array());
        Path labels =
                Files.writeString(folder.resolve("vectors.txt"), "east\nnorth\nwest\nsouth\n");
        Path model = folder.resolve("dense-model");
        TpRun.line(
                        "train --data %s --label-file %s --epochs 200 --batch 4 --tp 1 --out %s"
                                .formatted(data, labels, model))
                .assertPrints(0, "4 rows with dense features");
        Path onnx = folder.resolve("dense.onnx");
        TpRun.line("export --model " + model + " --onnx " + onnx).assertPrints(0);
        try (ClassModel loaded = ClassModel.load(model);
                NDManager manager = NDManager.newBaseManager()) {
            NDArray rows = manager.create(new float[][] {{1, -2}, {0.5f, 0}});
            NDArray logits = OnnxRuntimeTest.forward(loaded.getModel(), rows);
            OnnxRuntimeTest.assertComputes(onnx, "features", rows, "logits", logits);
        }
        try (ClassServer server = new ClassServer(model, "127.0.0.1", 0, null, 64)) {
            server.start();
            String one = post(server.getPort(), "{\"inputs\": [0.1, 2], \"top\": 1}").body();
            Assert.assertTrue(one.contains("north"), one);
            String list = post(server.getPort(), "{\"inputs\": [[0.1, 2]], \"top\": 1}").body();
            Assert.assertEquals(one, list);
            for (String wrong :
                    List.of("[1]", "[1, \"a\"]", "[1, [2]]", "[[1, 2], 3]", "[1, 1e99]")) {
                HttpResponse<String> answer = post(server.getPort(), "{\"inputs\": " + wrong + "}");
                Assert.assertEquals(answer.statusCode(), 400, wrong + answer.body());
            }
        }
    }

    /** A full disk leaves the model that is there. */
    @Test(timeOut = 120_000)
    public void aFullDiskKeepsTheModel() throws Exception {
        Path disk = Files.createDirectory(folder.resolve("disk"));
        if (run("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk.toString()) != 0) {
            throw new SkipException("a tmpfs cannot be mounted by this user");
        }
        try {
            String line =
                    "train --data %s --epochs 2 --dim 8 --tp 1 --out %s --seed "
                            .formatted(folder.resolve("sparse"), disk);
            TpRun.line(line + 1).assertPrints(0);
            byte[] before = Files.readAllBytes(disk.resolve("model.safetensors"));
            try (OutputStream filler = Files.newOutputStream(disk.resolve("filler"))) {
                filler.write(new byte[1 << 20]);
                Assert.fail("there is room");
            } catch (IOException e) {
                // it is full
            }
            TpRun full = TpRun.line(line + "2 --overwrite");
            full.assertPrints(
                    2, "The model cannot be saved in --out " + disk, "No space left", "Make room");
            Path figures = disk.resolve("figures.json");
            TpRun judged =
                    TpRun.line(
                            "evaluate %s --data %s --json %s"
                                    .formatted(disk, folder.resolve("sparse"), figures));
            judged.assertPrints(1, "tp: a disk is full: No space left on device. Make room");
            Assert.assertFalse(judged.output().contains("\tat "), judged.output());
            Assert.assertEquals(Files.readAllBytes(disk.resolve("model.safetensors")), before);
            Files.delete(disk.resolve("filler"));
            try (Stream<Path> files = Files.list(disk)) {
                Assert.assertEquals(
                        files.filter(it -> it.toString().contains(".writing")).count(), 0);
            }
            TpRun.line("predict %s --file %s".formatted(disk, folder.resolve("sparse")))
                    .assertPrints(0);
        } finally {
            run("umount", disk.toString());
        }
    }

    private static int run(String... command) throws Exception {
        return new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .start()
                .waitFor();
    }

    /** The first line of a table may have names that are not known. */
    @Test(timeOut = 120_000)
    public void aHeaderThatIsNotKnownIsTold() throws Exception {
        Path table =
                Files.writeString(
                        folder.resolve("shelves"), "shelf\tname\n" + "a\tx\nb\ty\n".repeat(9));
        String line = "train --data %s --steps 1 --tp 1 --format tsv --out %s";
        ForkedTp.Result result =
                ForkedTp.job(
                                JobVariables.ofAll(1),
                                process -> line.formatted(table, folder.resolve("shelves-model")))
                        .get(0);
        Assert.assertEquals(result.status(), 0, result.toString());
        Assert.assertTrue(
                result.toString().contains("no other has the label \"shelf\""), "" + result);
        Assert.assertTrue(result.toString().contains("--fields TEXT,LABEL"), "" + result);
    }

    private HttpResponse<String> post(int port, String body) throws Exception {
        return client.send(request(port, body), BodyHandlers.ofString());
    }

    private static HttpRequest request(int port, String body) {
        return HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + "/predict"))
                .header("Content-Type", "application/json")
                .POST(BodyPublishers.ofString(body))
                .build();
    }

    private void serve(Path model, String inputs, String best) throws Exception {
        try (ClassServer server = new ClassServer(model, "127.0.0.1", 0, null, 64)) {
            server.start();
            String good = "{\"inputs\": [" + inputs + "], \"top\": 2}";
            HttpResponse<String> answer = post(server.getPort(), good);
            Assert.assertEquals(answer.statusCode(), 200, answer.body());
            JsonArray predictions =
                    JsonParser.parseString(answer.body())
                            .getAsJsonObject()
                            .getAsJsonArray("predictions");
            JsonArray first = predictions.get(0).getAsJsonArray();
            Assert.assertEquals(first.size(), 2);
            Assert.assertEquals(first.get(0).getAsJsonObject().get("label").getAsString(), best);
            malformed(server.getPort(), good);
            int ofEmpty = inputs.startsWith("\"") ? 200 : 400; // a text may be empty, as in a file
            for (String empty : List.of("\"\"", "[\"\"]", "[\"word1\", \" \"]")) {
                answer = post(server.getPort(), "{\"inputs\": " + empty + "}");
                Assert.assertEquals(answer.statusCode(), ofEmpty, empty + answer.body());
            }
        }
    }

    /** Wrong requests among good ones get errors of their own, and nothing hangs. */
    private void malformed(int port, String good) throws Exception {
        List<String> values =
                List.of(
                        "null",
                        "1",
                        "\"a\"",
                        "[]",
                        "{}",
                        "[[]]",
                        "[null]",
                        "[[1e999]]",
                        "[[1, 2, 3]]",
                        "[{\"ids\": [1], \"values\": []}]",
                        "[{\"ids\": [999], \"values\": [1]}]",
                        "[{\"ids\": [-1], \"values\": [1]}]",
                        "[{\"ids\": 3}]",
                        "[{\"id\": [1]}]",
                        "[[\"x\"]]");
        for (String wrong : List.of("{\"input\": [\"a\"]}", good.replace("top", "k"))) {
            HttpResponse<String> answer = post(port, wrong);
            Assert.assertEquals(answer.statusCode(), 400, answer.body());
            Assert.assertTrue(answer.body().contains("is not known. Use inputs, top"), wrong);
        }
        Random random = new Random(1);
        List<CompletableFuture<HttpResponse<String>>> answers = new ArrayList<>();
        List<Boolean> fine = new ArrayList<>();
        for (int i = 0; i < 340; i++) {
            String body =
                    switch (i % 4) {
                        case 0 -> good;
                        case 1 -> good.substring(0, random.nextInt(good.length()));
                        case 2 -> "{\"inputs\": %s}".formatted(values.get(i / 4 % values.size()));
                        default -> good.replace("2}", values.get(i / 4 % 2 * 3) + "}");
                    };
            fine.add(i % 4 == 0);
            answers.add(client.sendAsync(request(port, body), BodyHandlers.ofString()));
            if (answers.size() % CLIENTS == 0) {
                answers.get(answers.size() - CLIENTS / 2).get();
            }
        }
        for (int i = 0; i < answers.size(); i++) {
            int status = answers.get(i).get().statusCode();
            if (fine.get(i)) {
                Assert.assertEquals(status, 200, answers.get(i).get().body());
            } else {
                Assert.assertTrue(status == 200 || status == 400, answers.get(i).get().body());
            }
        }
    }

    /** Requests that wait are computed together, and too many get status 429. */
    @Test(timeOut = 240_000, dependsOnMethods = "trainedJudgedAskedAndServed")
    public void requestsShareBatches() throws Exception {
        Path model = folder.resolve("text-model");
        try (ClassServer server = new ClassServer(model, "127.0.0.1", 0, "key", 8)) {
            server.start();
            HttpRequest wrongKey = request(server.getPort(), "{\"inputs\": [\"word1\"]}");
            Assert.assertEquals(client.send(wrongKey, BodyHandlers.ofString()).statusCode(), 401);
            HttpRequest request =
                    HttpRequest.newBuilder(wrongKey, (name, value) -> true)
                            .header("Authorization", "Bearer key")
                            .build();
            List<CompletableFuture<HttpResponse<String>>> all = new ArrayList<>();
            for (int i = 0; i < 200; i++) {
                all.add(client.sendAsync(request, BodyHandlers.ofString()));
            }
            int[] counts = new int[600];
            for (CompletableFuture<HttpResponse<String>> each : all) {
                counts[each.get().statusCode()]++;
            }
            Assert.assertEquals(counts[200] + counts[429], 200, Arrays.toString(counts));
            HttpRequest figures =
                    HttpRequest.newBuilder(
                                    URI.create("http://127.0.0.1:" + server.getPort() + "/metrics"))
                            .build();
            String metrics = client.send(figures, BodyHandlers.ofString()).body();
            long batches = figure(metrics, "tp_batches_total");
            Assert.assertEquals(figure(metrics, "tp_inputs_total"), counts[200]);
            Assert.assertTrue(batches < counts[200], metrics);
            Assert.assertEquals(figure(metrics, "tp_queue_full_total"), counts[429]);
        }
    }

    private static long figure(String metrics, String name) {
        return metrics.lines()
                .filter(line -> line.startsWith(name + " "))
                .mapToLong(line -> Long.parseLong(line.substring(name.length() + 1)))
                .sum();
    }

    /** SIGTERM ends the server with status 0. */
    @Test(timeOut = 120_000, dependsOnMethods = "trainedJudgedAskedAndServed")
    public void theCommandServesAndEnds() throws Exception {
        int port = FreePort.find();
        List<String> words =
                List.of("serve", folder.resolve("text-model").toString(), "--port", "" + port);
        try (ForkedTp process = ForkedTp.start(Map.of(), words)) {
            HttpRequest health =
                    HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + "/health"))
                            .build();
            for (int status = 0; status != 200; Thread.sleep(50)) {
                Assert.assertTrue(process.isAlive(), "the server has ended");
                try {
                    status = client.send(health, BodyHandlers.ofString()).statusCode();
                } catch (IOException e) {
                    // it does not listen yet
                }
            }
            Assert.assertEquals(post(port, "{\"inputs\": \"word2\"}").statusCode(), 200);
            ForkedTp.Result result = process.stop();
            Assert.assertEquals(result.status(), 0, result.toString());
            Assert.assertTrue(result.out().contains("/predict"), result.out());
        }
    }

    /** Two processes learn what one does. */
    @Test(timeOut = 240_000)
    public void aJobOfTwoProcessesAgrees() throws Exception {
        Path data = folder.resolve("text");
        String line = "train --data %s --steps 12 --batch 20 --dim 8 --tp 2 --out %s --json %s";
        Path alone = folder.resolve("alone.json");
        Path both = folder.resolve("both.json");
        TpRun.line(line.formatted(data, folder.resolve("alone"), alone)).assertPrints(0);
        List<ForkedTp.Result> results =
                ForkedTp.job(
                        JobVariables.ofAll(2),
                        process -> line.formatted(data, folder.resolve("both"), both));
        results.forEach(each -> Assert.assertEquals(each.status(), 0, each.toString()));
        JsonArray expected = losses(alone);
        JsonArray actual = losses(both);
        Assert.assertEquals(actual.size(), 12);
        for (int i = 0; i < 12; i++) {
            Assert.assertEquals(actual.get(i).getAsDouble(), expected.get(i).getAsDouble(), 1e-4);
        }
    }

    private static JsonArray losses(Path json) throws IOException {
        return JsonParser.parseString(Files.readString(json))
                .getAsJsonObject()
                .getAsJsonArray("loss");
    }

    /** A checkpoint goes on to the same model as a run without a stop. */
    @Test(timeOut = 240_000)
    public void resumes() throws Exception {
        String line =
                "train --data %s --batch 20 --dim 8 --out %s --checkpoint-steps 5"
                        + " --optimizer sgd --lr 0.1 --steps "; // whose rate does not follow the
        // end
        Path data = folder.resolve("text");
        String stopped = line.formatted(data, folder.resolve("stopped"));
        TpRun.line(stopped + 9).assertPrints(0);
        TpRun.line(stopped + "17 --resume --label-separator ,")
                .assertPrints(2, "--label-separator");
        TpRun resumed = TpRun.withJson(stopped + "17 --resume");
        resumed.assertPrints(0, "Going on after step 9");
        TpRun whole = TpRun.withJson(line.formatted(data, folder.resolve("whole")) + 17);
        Assert.assertEquals(resumed.losses(), whole.losses());
    }

    @DataProvider
    public Object[][] encoders() {
        return new Object[][] {{""}, {" --freeze-body"}};
    }

    /** Whatever the optimizer, an encoder has a thousandth of the learning rate. */
    @Test(timeOut = 120_000)
    public void anEncoderLearnsSlowly() throws Exception {
        Path encoder = TestFolder.create();
        RandomFolder.writeEncoder(encoder);
        String line =
                "train --data %s --body %s --batch 20 --optimizer adam --steps 4 --out "
                        .formatted(folder.resolve("text"), encoder);
        double[] frozen = TpRun.withJson(line + TestFolder.create() + " --freeze-body").losses();
        double[] trained = TpRun.withJson(line + TestFolder.create()).losses();
        Assert.assertNotEquals(trained, frozen);
        Assert.assertEquals(trained, frozen, 1e-4); // of the whole rate, 1e-2
    }

    /**
     * An encoder below the head is trained, resumed, judged, asked and served without its folder.
     */
    @Test(dataProvider = "encoders", timeOut = 240_000)
    public void anEncoderIsTheBody(String frozen) throws Exception {
        Path encoder = TestFolder.create();
        RandomFolder.writeEncoder(encoder);
        Path data = folder.resolve("text");
        String options =
                "train --data %s --validation %1$s --body %s%s --batch 20 --tp 2 --optimizer sgd --lr 0.1"
                        .formatted(data, encoder, frozen);
        Path model = TestFolder.create();
        String stopped = options + " --checkpoint-steps 4 --out " + model + " --steps ";
        TpRun.line(
                        (stopped + 5)
                                .replace("--tp 2", "--tp 7")
                                .replace(data + " --v", encoder.resolve("config.json") + " --v"))
                .assertPrints(2, "--tp 7 leaves ranks without a head: 7 ranks share the 5");
        TpRun.line(stopped + 5).assertPrints(0, "x 20 on 2 ranks, mode tensor");
        TpRun resumed = TpRun.withJson(stopped + "9 --resume");
        resumed.assertPrints(0, "Going on after step 5");
        TpRun whole = TpRun.withJson(options + " --steps 9 --out " + TestFolder.create());
        Assert.assertEquals(resumed.losses(), whole.losses());
        Files.delete(encoder.resolve("model.safetensors"));

        JsonObject judged = resumed.figures().getAsJsonObject().getAsJsonObject("validation");
        Assert.assertEquals(
                TpRun.withJson("evaluate %s --data %s".formatted(model, data)).figures(), judged);
        TpRun asked = TpRun.withJson("predict " + model + " word3");
        JsonArray labels = asked.figures().getAsJsonArray();
        try (ClassServer server = new ClassServer(model, "127.0.0.1", 0, null, 64)) {
            server.start();
            String answer = post(server.getPort(), "{\"inputs\": [\"word3\"]}").body();
            Assert.assertTrue(answer.contains(best(labels, 0)), answer);
        }
    }

    @DataProvider
    public Object[][] wrong() {
        return new Object[][] {
            {"train --data none --out x", "--data none cannot be read"},
            {"train --data @text", "--data needs --out"},
            {"train --data @text --out x --languages de", "are for the dictionaries"},
            {"train --validation @text", "need --data"},
            {"train --format tsv", "say how to read --data"},
            {"train --forms", "--forms needs --export-split"},
            {"train --data @tsv --out x --fields a,b,c", "--fields needs two names"},
            {"train --data @text --out x --features dense", "of which the features are text"},
            {"train --data @text --out x --skip-bad-lines -1", "must be 0 or more, not -1"},
            {"train --data @text --out x --labels two", "Invalid value for option '--labels'"},
            {"train --data @text --out x --tp 9 --batch 20", "leaves ranks without a class"},
            {"train --data @text --out x --validation @sparse", "--validation has SPARSE features"},
            {"train --data @text --out x --validation @tsv", "--validation has no label that"},
            {
                "serve @text-model --weights int8 --batch 4",
                "has a classifier, and --weights, --batch can be set for language models only"
            },
            {"train --data @text --out x --filter-file @text", "needs rows and classes that have"},
            {"train --data @text --out x --validation-filter-file @text", "belong to --validation"},
            {"train --data @text --out x --freeze-body", "--freeze-body needs --body"},
            {"train --data @text --out x --body @", "--body"},
            {"train --data @text --out @ --body @", "is the folder of --body"},
            {"train --data @text --out x --body @ --mode mixed", "use tensor or data"},
            {"train --body @", "--loss and --body need --data"},
            {"evaluate none --data @text", "There is no trained model in none"},
            {"evaluate @ --json x", "--data FILE"},
            {"predict none a", "There is no trained model in none"},
            {"predict none", "Say what to predict"},
            {"predict none a --top 0", "--top must be greater than 0"},
            {"export --onnx @none/x.onnx", "name a file in an existing folder"},
            {"train --data @text --out x --loss k", "one of [SOFTMAX, one-vs-all, squared-hinge]"},
        };
    }

    @Test(
            dataProvider = "wrong",
            timeOut = 60_000,
            dependsOnMethods = "trainedJudgedAskedAndServed")
    public void wrongOptionsAreNamed(String line, String message) {
        String out = line.replace(" x", " " + folder.resolve("never"));
        TpRun.line(out.replace("@", folder + "/")).assertPrints(2, message);
        Assert.assertFalse(Files.exists(folder.resolve("never/model.json")), line);
    }
}
