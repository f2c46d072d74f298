package io.djltp.llm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.listener.TrainingListener;

import com.google.gson.Gson;
import com.google.gson.JsonObject;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.Configs;
import io.djltp.testing.PyTorch;
import io.djltp.testing.TestFolder;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

/** Losses of steps of SGD on 1 to 3 ranks and a mesh, against PyTorch's float64. */
public class TrainingTest {

    private static final double TOLERANCE = 1e-5; // of the loss
    static final int ROWS = 4;
    static final int LENGTH = 7;
    private static final int STEPS = 10;
    static final float RATE = 0.03125f;

    private static final Map<String, JsonObject> MODELS = new LinkedHashMap<>();

    static {
        MODELS.put("llama", RandomFolder.config("llama", "'tie_word_embeddings': true"));
        MODELS.put("mistral", RandomFolder.config("mistral", "'sliding_window': 3"));
        MODELS.put("qwen2", RandomFolder.config("qwen2", "'tie_word_embeddings': true"));
        MODELS.put("qwen3", RandomFolder.config("qwen3", ""));
        MODELS.put("starcoder2", RandomFolder.config("starcoder2", ""));
        MODELS.put("gpt2", RandomFolder.config("gpt2", ""));
    }

    private Map<String, double[]> expected;
    private final Path folder = TestFolder.create();
    private long[] ids;
    private long[] labels;

    @BeforeClass
    public void compute() throws Exception {
        Random random = new Random(5);
        ids = random.longs((long) ROWS * LENGTH, 0, 53).toArray();
        labels = random.longs((long) ROWS * LENGTH, 0, 53).toArray();
        Map<String, ?> input =
                Map.of(
                        "ids",
                        Expected.rows(LENGTH, ids),
                        "labels",
                        Expected.rows(LENGTH, labels),
                        "steps",
                        STEPS,
                        "rate",
                        RATE);
        expected = Expected.compute(folder, MODELS, input);
    }

    @DataProvider
    public static Object[][] models() {
        return MODELS.keySet().stream().map(name -> new Object[] {name}).toArray(Object[][]::new);
    }

    @Test(dataProvider = "models", timeOut = 120_000)
    public void testLossesArePyTorchs(String name) throws Exception {
        List<ParallelConfig> configs =
                List.of(
                        ParallelConfig.tensor(1),
                        ParallelConfig.tensor(2),
                        ParallelConfig.tensor(3),
                        ParallelConfig.mesh(2, 2));
        for (ParallelConfig config : configs) {
            double[] losses = train(folder.resolve(name), config);
            for (int i = 0; i < STEPS; i++) {
                double wanted = expected.get(name)[i];
                String what = name + ", " + config.describe() + ", step " + i;
                Assert.assertEquals(losses[i], wanted, TOLERANCE * wanted, what);
            }
            Assert.assertTrue(losses[STEPS - 1] < losses[0], name);
        }
    }

    private double[] train(Path model, ParallelConfig ranks) throws Exception {
        try (LanguageModel loaded = LanguageModel.builder(model).optShardedLogits(true).load();
                ParallelTrainer trainer = trainer(loaded, ranks)) {
            double[] losses = train(trainer, ids, labels, STEPS);
            if (ranks.getRanks() == 2) {
                loaded.save(model.resolve("saved"), DataType.FLOAT32);
            }
            return losses;
        }
    }

    /** PyTorch computes the same logits with the file that two ranks have written. */
    @Test(dataProvider = "models", timeOut = 120_000, dependsOnMethods = "testLossesArePyTorchs")
    public void testSavedModelIsPyTorchs(String name) throws Exception {
        Map<String, ?> input =
                Map.of(
                        "folder",
                        folder.resolve(name).resolve("saved").toString(),
                        "ids",
                        Expected.rows(LENGTH, ids));
        List<String> result = PyTorch.run("llm/reference.py", List.of(new Gson().toJson(input)));
        double[] logits = new Gson().fromJson(result.get(0), double[].class);
        double[] wanted = expected.get(name);
        wanted = Arrays.copyOfRange(wanted, STEPS, wanted.length);
        float[] found = new float[logits.length];
        for (int i = 0; i < found.length; i++) {
            found[i] = (float) logits[i];
        }
        Expected.check(found, wanted, 1e-4, name);
    }

    static ParallelTrainer trainer(
            LanguageModel model, ParallelConfig ranks, TrainingListener... listeners) {
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                        .optOptimizer(Configs.sgd(RATE))
                        .addTrainingListeners(listeners);
        ParallelTrainer trainer = new ParallelTrainer(model.getModel(), config, ranks);
        trainer.initialize(new Shape(ROWS, LENGTH));
        return trainer;
    }

    /** Returns the losses of steps with one batch of ROWS texts of LENGTH tokens. */
    static double[] train(ParallelTrainer trainer, long[] ids, long[] labels, int steps) {
        double[] losses = new double[steps];
        for (int i = 0; i < steps; i++) {
            try (NDManager manager = trainer.getManager().newSubManager();
                    GradientCollector collector = trainer.newGradientCollector()) {
                NDList data = new NDList(manager.create(ids, new Shape(ROWS, LENGTH)));
                NDList wanted = new NDList(manager.create(labels, new Shape(ROWS, LENGTH)));
                NDList predictions = trainer.forward(data, wanted);
                NDArray loss = trainer.getLoss().evaluate(wanted, predictions);
                collector.backward(loss);
                losses[i] = loss.getFloat();
            }
            trainer.step();
        }
        return losses;
    }
}
