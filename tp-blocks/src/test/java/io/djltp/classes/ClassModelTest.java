package io.djltp.classes;

import ai.djl.inference.Predictor;
import ai.djl.modality.Classifications;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.training.EasyTrain;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.translate.TranslateException;
import ai.djl.util.JsonUtils;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;

import io.djltp.classes.ClassData.Features;
import io.djltp.classes.ClassData.Row;
import io.djltp.classes.ClassModel.Objective;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.RecordedTest;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;
import io.djltp.zoo.RankedNetwork;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Stream;

/** Models of each kind of data are trained, saved, loaded here and by DJL, and asked. */
public class ClassModelTest extends RecordedTest {

    private static final int ROWS = 60;
    private static final int CLASSES = 6;

    private final Path folder = TestFolder.create();

    @DataProvider
    public Object[][] kinds() {
        return new Object[][] {
            {"text", false, Objective.SOFTMAX, 1},
            {"text", true, Objective.SOFTMAX, 2},
            {"text", true, Objective.ONE_VS_ALL, 3},
            {"sparse", false, Objective.SOFTMAX, 2},
            {"sparse", true, Objective.SQUARED_HINGE, 2},
            {"dense", false, Objective.SOFTMAX, 2},
            {"body", false, Objective.SOFTMAX, 2},
        };
    }

    /** Any block, of a program that uses the library. */
    public static final class OwnBody implements ClassBody {

        @Override
        public Block newBlock() {
            return new SequentialBlock()
                    .add(Linear.builder().setUnits(16).build())
                    .add(Activation::tanh);
        }
    }

    /** Row i has the class i % 6 and, if there are many, 0 too; its features tell. */
    private Path write(String kind, boolean many) throws IOException {
        List<String> lines = new ArrayList<>();
        for (int i = 0; i < ROWS; i++) {
            int own = i % CLASSES;
            String label = many && own != 0 ? "0," + own : "" + own;
            lines.add(
                    switch (kind) {
                        case "text" ->
                                "__label__"
                                        + label.replace(",", " __label__")
                                        + " w"
                                        + own
                                        + " x"
                                        + i;
                        case "sparse" -> label + " " + own + ":1.5 " + (10 + i) + ":0.5";
                        default -> {
                            double angle = own * Math.PI / 3;
                            yield (float) Math.cos(angle) + "," + (float) Math.sin(angle);
                        }
                    });
        }
        Path file = folder.resolve(kind + many);
        if (!kind.equals("dense") && !kind.equals("body")) {
            return Files.write(file, lines);
        }
        Path vectors = folder.resolve("vectors.npy");
        float[][] values = new float[ROWS][];
        for (int i = 0; i < ROWS; i++) {
            String[] pair = lines.get(i).split(",");
            values[i] = new float[] {Float.parseFloat(pair[0]), Float.parseFloat(pair[1])};
        }
        Files.write(vectors, npy(values));
        Files.write(
                folder.resolve("labels.txt"),
                Stream.iterate(0, i -> i + 1).limit(ROWS).map(i -> "" + i % CLASSES).toList());
        return vectors;
    }

    private static byte[] npy(float[][] values) {
        String header =
                "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }"
                        .formatted(values.length, values[0].length);
        header += " ".repeat(117 - header.length()) + "\n";
        java.nio.ByteBuffer bytes =
                java.nio.ByteBuffer.allocate(128 + 4 * values.length * values[0].length)
                        .order(java.nio.ByteOrder.LITTLE_ENDIAN);
        bytes.put(new byte[] {(byte) 0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0}).putShort((short) 118);
        bytes.put(header.getBytes(java.nio.charset.StandardCharsets.US_ASCII));
        for (float[] row : values) {
            for (float value : row) {
                bytes.putFloat(value);
            }
        }
        return bytes.array();
    }

    @Test(dataProvider = "kinds", timeOut = 120_000)
    public void isTrainedSavedLoadedAndAsked(
            String kind, boolean many, Objective objective, int ranks) throws Exception {
        ClassData.Builder builder = ClassData.builder(write(kind, many));
        boolean body = kind.equals("body");
        if (body || kind.equals("dense")) {
            builder.optLabelFile(folder.resolve("labels.txt"));
        }
        ClassData data = builder.optTextFeatures(new TextFeatures(997, 2, 3, 2)).build();
        Path saved = folder.resolve("%s-%s-%s".formatted(kind, many, objective));
        List<Row> rows;
        try (Stream<Row> all = data.stream()) {
            rows = all.toList();
        }
        List<Classifications> answers;
        ClassModel.Builder network = ClassModel.builder(data).optDim(8).optObjective(objective);
        if (body) {
            network.optBody(new OwnBody());
        }
        try (ClassModel model = network.build()) {
            try (Trainer trainer = model.newTrainer(ParallelConfig.mixed(ranks))) {
                EasyTrain.fit(trainer, 120, data.newDataset(ROWS, true, 1), null);
            }
            model.save(saved);
            answers = ask(model, rows);
        }
        int right = 0;
        for (int i = 0; i < ROWS; i++) {
            int own = rows.get(i).classes().length;
            List<String> best =
                    answers.get(i).<Classifications.Classification>topK(own).stream()
                            .map(Classifications.Classification::getClassName)
                            .toList();
            for (int each : rows.get(i).classes()) {
                right += best.contains(data.getClasses().get(each)) ? 1 : 0;
            }
        }
        int labels = rows.stream().mapToInt(row -> row.classes().length).sum();
        Assert.assertTrue(right > 0.95 * labels, right + " of " + labels);
        try (ClassModel loaded = ClassModel.load(saved)) {
            Assert.assertEquals(loaded.getClasses(), data.getClasses());
            Assert.assertEquals(loaded.getClassCounts(), data.getClassCounts());
            assertSame(ask(loaded, rows), answers, 0);
        }
        for (int degree : new int[] {1, 2}) {
            assertSame(askDjl(saved, degree, rows), answers, 1e-5);
        }
        serve(saved, data.getFeatures(), rows, answers);
    }

    /** As DJL Serving does: requests of one row, of a list of rows, and wrong ones, in a batch. */
    private static void serve(
            Path saved, Features features, List<Row> rows, List<Classifications> answers)
            throws Exception {
        String[] json = rows.stream().limit(3).map(ClassModelTest::json).toArray(String[]::new);
        List<Input> inputs = new ArrayList<>();
        for (String body :
                new String[] {
                    "{\"inputs\": " + json[0] + "}",
                    "[" + json[1] + ", " + json[2] + "]",
                    "{\"inputs\": [" + json[0] + ", null]}",
                    "{",
                    "",
                    "{\"inputs\": " + json[0] + ", \"top\": 2}"
                }) {
            inputs.add(new Input());
            inputs.get(inputs.size() - 1).addProperty("Content-Type", "application/json");
            inputs.get(inputs.size() - 1).add(body);
        }
        if (features == Features.TEXT) {
            inputs.add(new Input());
            inputs.get(6).add(Objects.requireNonNull(rows.get(3).text()));
        }
        Criteria<Input, Output> criteria =
                Criteria.builder()
                        .setTypes(Input.class, Output.class)
                        .optModelPath(saved)
                        .optArgument("topk", 3)
                        .build();
        try (ZooModel<Input, Output> model = criteria.loadModel();
                Predictor<Input, Output> predictor = model.newPredictor()) {
            List<Output> outputs = predictor.batchPredict(inputs);
            JsonArray two = JsonUtils.GSON.fromJson(text(outputs.get(1)), JsonArray.class);
            assertSame(JsonUtils.GSON.fromJson(text(outputs.get(0)), JsonArray.class), answers, 0);
            Assert.assertEquals(two.size(), 2);
            assertSame(two.get(0).getAsJsonArray(), answers, 1);
            assertSame(two.get(1).getAsJsonArray(), answers, 2);
            if (features == Features.TEXT) {
                String one = text(outputs.get(6));
                assertSame(JsonUtils.GSON.fromJson(one, JsonArray.class), answers, 3);
            }
            Assert.assertTrue(text(outputs.get(2)).contains("Input 1 must be "));
            Assert.assertEquals(outputs.get(2).getCode(), 400);
            Assert.assertEquals(outputs.get(3).getCode(), 400);
            Assert.assertTrue(text(outputs.get(3)).contains("The body is not JSON at $."));
            Assert.assertTrue(text(outputs.get(4)).contains("The body is not JSON at $"));
            Assert.assertTrue(text(outputs.get(5)).contains("The fields [top] are not known"));
            TranslateException wrong =
                    Assert.expectThrows(
                            TranslateException.class, () -> predictor.predict(inputs.get(2)));
            Assert.assertTrue(wrong.getMessage().contains("Input 1 must be "), "" + wrong);
        }
    }

    private static String text(Output output) {
        return output.getData().getAsString();
    }

    private static String json(Row row) {
        Object input = row.text() != null ? row.text() : row.values();
        return JsonUtils.GSON.toJson(
                row.ids() == null ? input : Map.of("ids", row.ids(), "values", row.values()));
    }

    private static void assertSame(JsonArray best, List<Classifications> answers, int row) {
        List<String> names = answers.get(row).getClassNames();
        Assert.assertEquals(best.size(), names.size());
        for (int i = 0; i < names.size(); i++) {
            JsonObject each = best.get(i).getAsJsonObject();
            Assert.assertEquals(each.get("className").getAsString(), names.get(i));
            double score = answers.get(row).getProbabilities().get(i);
            double size = Math.max(1, Math.abs(score));
            Assert.assertEquals(each.get("probability").getAsDouble(), score, 1e-5 * size);
        }
    }

    /** 0 fills short texts up. */
    @Test
    public void textsHaveFeaturesOfOneLength() {
        Block body = ClassModel.newTextBody(512, 32);
        body.initialize(manager, DataType.FLOAT32, new Shape(2, 4));
        ParameterStore store = new ParameterStore(manager, false);
        NDList ids = new NDList(manager.create(new int[][] {{5, 9, 0, 0}, {7, 7, 7, 0}}));
        NDArray features = body.forward(store, ids, false).singletonOrThrow();
        for (float length : features.square().sum(new int[] {1}).sqrt().toFloatArray()) {
            Assert.assertEquals(length, 16, 1e-3f);
        }
        NDList narrow = new NDList(manager.create(new int[][] {{5, 9}}));
        float[] first = body.forward(store, narrow, false).head().toFloatArray();
        Assert.assertEquals(features.get(0).toFloatArray(), first, 1e-4f);
    }

    @DataProvider
    public static Object[][] wrongBodies() {
        return new Object[][] {
            {"{}", "model.json has no sizes of a classifier: "},
            {"'own.Missing'", "model.json has a body of the class own.Missing, which is not on"},
            {"'java.lang.String'", "a body of the class java.lang.String, which is not on the"},
        };
    }

    @Test(dataProvider = "wrongBodies")
    public void aWrongBodyIsNamed(String body, String message) throws IOException {
        Path none = folder.resolve("none");
        Refusals.expect(IOException.class, () -> ClassModel.load(none), "none has no classifier");
        String sizes = "{'features': 'DENSE', 'hidden': [], 'objective': 'SOFTMAX', 'body': %s}";
        Files.writeString(folder.resolve("model.json"), sizes.formatted(body));
        Refusals.expect(IOException.class, () -> ClassModel.load(folder), message);
    }

    private static List<Classifications> ask(ClassModel model, List<Row> rows) throws Exception {
        Assert.assertThrows(IllegalArgumentException.class, () -> model.newPredictor(Row.class, 0));
        try (Predictor<Row, Classifications> predictor = model.newPredictor(Row.class, 3)) {
            return predictor.batchPredict(rows);
        }
    }

    private static List<Classifications> askDjl(Path saved, int degree, List<Row> rows)
            throws Exception {
        Criteria<Row, Classifications> criteria =
                Criteria.builder()
                        .setTypes(Row.class, Classifications.class)
                        .optModelPath(saved)
                        .optTranslatorFactory(new ClassModel.TranslatorFactory())
                        .optArgument("tensor_parallel_degree", degree)
                        .optArgument("topk", 3)
                        .build();
        try (ZooModel<Row, Classifications> model = criteria.loadModel();
                Predictor<Row, Classifications> predictor = model.newPredictor()) {
            Assert.assertEquals(model.getBlock() instanceof RankedNetwork, degree > 1);
            return predictor.batchPredict(rows);
        }
    }

    private static void assertSame(
            List<Classifications> actual, List<Classifications> expected, double tolerance) {
        for (int i = 0; i < ROWS; i++) {
            Assert.assertEquals(
                    actual.get(i).getClassNames(), expected.get(i).getClassNames(), "row " + i);
            List<Double> scores = expected.get(i).getProbabilities();
            for (int j = 0; j < scores.size(); j++) {
                double score = actual.get(i).getProbabilities().get(j);
                double size = Math.abs(scores.get(j));
                // the rounding of a logit is relative: e^-32 has 32 times that of e^-1
                double logit = Math.max(1, Math.abs(Math.log(size)));
                Assert.assertEquals(score, scores.get(j), tolerance * size * logit);
            }
        }
    }
}
