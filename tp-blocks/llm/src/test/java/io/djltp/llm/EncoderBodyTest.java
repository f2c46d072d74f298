package io.djltp.llm;

import ai.djl.inference.Predictor;
import ai.djl.modality.Classifications;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.nn.Parameter;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.ParameterStore;
import ai.djl.training.dataset.Batch;
import ai.djl.util.Pair;

import io.djltp.classes.ClassData;
import io.djltp.classes.ClassModel;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.Configs;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** A classifier whose body is an encoder learns the same on any number of ranks. */
public class EncoderBodyTest {

    private static final int ROWS = 35; // five batches
    private static final int BATCH = 7;

    private final Path folder = TestFolder.create();
    private final Path file = TestFolder.create().resolve("rows.tsv");

    @BeforeClass
    public void write() throws Exception {
        RandomFolder.writeEncoder(folder);
        List<String> lines = new ArrayList<>();
        for (int i = 0; i < ROWS; i++) { // of 1 to 40 tokens, and cut
            String text = "text %d of class %d ".formatted(i * 31 % 17, i % 5);
            lines.add("c" + i % 5 + "\t" + text.repeat(3).substring(0, 1 + i * 13 % 50));
        }
        Files.write(file, lines);
    }

    @DataProvider
    public static Object[][] ranks() {
        return new Object[][] {
            {"tensor", 2, false}, {"tensor", 3, false}, {"tensor", 3, true}, {"data", 2, false},
        };
    }

    @Test(dataProvider = "ranks", timeOut = 120_000)
    public void testTrainingEqualsThatOfOneRank(String mode, int ranks, boolean frozen)
            throws Exception {
        List<Float> expectedLosses = new ArrayList<>();
        List<Float> losses = new ArrayList<>();
        Map<String, float[]> expected =
                train(ParallelConfig.tensor(1), frozen, expectedLosses, null);
        Map<String, float[]> actual =
                train(
                        mode.equals("data")
                                ? ParallelConfig.data(ranks)
                                : ParallelConfig.tensor(ranks),
                        frozen,
                        losses,
                        null);
        for (int i = 0; i < losses.size(); i++) {
            Assert.assertEquals(losses.get(i), expectedLosses.get(i), 1e-5 * losses.get(i));
        }
        expected.forEach((name, values) -> assertClose(actual.get(name), values, 1e-5, name));
        if (!frozen) {
            Map<String, float[]> still =
                    train(ParallelConfig.tensor(1), true, new ArrayList<>(), null);
            still.keySet().removeIf(name -> Arrays.equals(still.get(name), actual.get(name)));
            Assert.assertTrue(still.size() > actual.size() / 2, "trained: " + still.keySet());
        }
    }

    private static void assertClose(
            float[] actual, float[] expected, double relative, String name) {
        double largest = 1e-3;
        for (float value : expected) {
            largest = Math.max(largest, Math.abs(value));
        }
        for (int i = 0; i < expected.length; i++) {
            Assert.assertEquals(actual[i], expected[i], relative * largest, name + " " + i);
        }
    }

    /** Trains five steps, and returns the parameters. */
    private Map<String, float[]> train(
            ParallelConfig ranks, boolean frozen, List<Float> losses, Path out) throws Exception {
        EncoderBody body = EncoderBody.of(folder, frozen);
        ClassData data = ClassData.builder(file).optTextFeatures(body).build();
        try (ClassModel model = ClassModel.builder(data).optBody(body).build()) {
            model.getModel().getNDManager().getEngine().setRandomSeed(3);
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(model.newLoss()).optOptimizer(Configs.sgd(0.01f));
            try (ParallelTrainer trainer = new ParallelTrainer(model.getModel(), config, ranks)) {
                trainer.initialize(model.getInputShapes(BATCH));
                for (Batch batch : trainer.iterateDataset(data.newDataset(BATCH, true, 1))) {
                    losses.add(TrainingRun.step(trainer, batch.getData(), batch.getLabels()));
                    batch.close();
                }
            }
            if (out != null) {
                model.save(out);
            }
            Map<String, float[]> values = new LinkedHashMap<>();
            for (Pair<String, Parameter> each : model.getModel().getBlock().getParameters()) {
                values.put(each.getKey(), each.getValue().getArray().toFloatArray());
            }
            return values;
        }
    }

    @DataProvider
    public static Object[][] frozen() {
        return new Object[][] {{true}, {false}};
    }

    /** What a folder gives is what was saved there, and a frozen encoder is the one of before. */
    @Test(dataProvider = "frozen", timeOut = 60_000)
    public void testSavedFolderStandsAlone(boolean frozen) throws Exception {
        Path out = TestFolder.create();
        Map<String, float[]> trained =
                train(ParallelConfig.tensor(2), frozen, new ArrayList<>(), out);
        List<String> texts = List.of("a text", "text 4 of class 2", "x".repeat(90));
        try (ClassModel model = ClassModel.load(out);
                Embedder embedder = Embedder.load(folder, ParallelConfig.tensor(1));
                EncoderBody body = new EncoderBody();
                Predictor<String, Classifications> predictor =
                        model.newPredictor(String.class, 5)) {
            body.load(out);
            for (Pair<String, Parameter> each : model.getModel().getBlock().getParameters()) {
                float[] values = trained.get(each.getKey());
                Assert.assertEquals(each.getValue().getArray().toFloatArray(), values);
            }
            var store = new ParameterStore(model.getModel().getNDManager(), false);
            for (String text : texts) {
                NDArray ids = model.getModel().getNDManager().create(body.apply(text));
                NDArray vector =
                        model.getModel()
                                .getBlock()
                                .getChildren()
                                .valueAt(0)
                                .forward(store, new NDList(ids.expandDims(0)), false)
                                .singletonOrThrow();
                float[] unit = vector.div(vector.norm()).toFloatArray();
                float[] before = embedder.embed(List.of(text)).get(0);
                if (frozen) {
                    assertClose(unit, before, 1e-5, text);
                } else {
                    Assert.assertNotEquals(unit, before);
                }
            }
            List<Classifications> together = predictor.batchPredict(texts);
            for (int i = 0; i < texts.size(); i++) { // filled up beside longer ones
                double alone = predictor.predict(texts.get(i)).best().getProbability();
                Assert.assertEquals(together.get(i).best().getProbability(), alone, 1e-5);
            }
            Criteria<String, Classifications> criteria =
                    Criteria.builder()
                            .setTypes(String.class, Classifications.class)
                            .optModelPath(out)
                            .optTranslatorFactory(new ClassModel.TranslatorFactory())
                            .optArgument("tensor_parallel_degree", 2)
                            .build();
            try (ZooModel<String, Classifications> zoo = criteria.loadModel();
                    Predictor<String, Classifications> ofDjl = zoo.newPredictor()) {
                List<Classifications> all = ofDjl.batchPredict(texts);
                for (int i = 0; i < texts.size(); i++) {
                    double score = together.get(i).best().getProbability();
                    Assert.assertEquals(all.get(i).best().getProbability(), score, 1e-5);
                }
            }
        }
    }

    @Test(timeOut = 60_000)
    public void testBadUseIsNamed() throws Exception {
        Refusals.throwsArgument(
                () -> train(ParallelConfig.mixed(2), true, new ArrayList<>(), null), "MIXED mode");
        try (EncoderBody body = EncoderBody.of(folder, true)) {
            Refusals.throwsArgument(
                    () -> ClassModel.builder(ClassData.builder(file).build()).optBody(body).build(),
                    "optTextFeatures(body)");
            body.newBlock();
            Refusals.throwsState(body::newBlock, "one model");
        }
        Path out = TestFolder.create();
        train(ParallelConfig.tensor(1), true, new ArrayList<>(), out);
        Path json = out.resolve("model.json");
        String text = Files.readString(json);
        for (String name : List.of("no.Such", "java.lang.String")) {
            Files.writeString(json, text.replace(EncoderBody.class.getName(), name));
            Refusals.expect(
                    IOException.class, () -> ClassModel.load(out), "body of the class " + name);
        }
    }
}
