package io.djltp.llm;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.dataset.Batch;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import io.djltp.llm.tune.TuningData;
import io.djltp.llm.tune.TuningSteps;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.PyTorch;
import io.djltp.testing.TestFolder;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Losses of steps of SGD and of evaluations, of padded, packed and accumulated batches, against
 * PyTorch's float64.
 */
public class TuningStepsTest {

    private static final double TOLERANCE = 1e-5; // of the loss
    private static final int STEPS = 3;
    private static final float RATE = 0.125f;
    private static final int LENGTH = 16;

    private static final List<String> LINES =
            List.of(
                    "{'text': 'hello world'}",
                    "{'prompt': 'one two ', 'completion': 'six'}",
                    "{'text': 'a'}",
                    "{'prompt': 'x', 'completion': 'yzyzyz'}",
                    "{'text': 'hello hello ab'}",
                    "{'prompt': 'abcdefgh', 'completion': 'i'}");

    private static final Map<String, JsonObject> MODELS = new LinkedHashMap<>();

    static {
        String sizes = "'vocab_size': 263, 'eos_token_id': 262";
        MODELS.put("llama", RandomFolder.config("llama", sizes + ", 'tie_word_embeddings': true"));
        MODELS.put("mistral", RandomFolder.config("mistral", sizes + ", 'sliding_window': 3"));
        MODELS.put("gpt2", RandomFolder.config("gpt2", sizes));
    }

    private final Map<String, double[]> expected = new LinkedHashMap<>();
    private final Path folder = TestFolder.create();
    private Path file;

    @BeforeClass
    public void compute() throws Exception {
        file = folder.resolve("texts.jsonl");
        Files.writeString(file, String.join("\n", LINES).replace('\'', '"'));
        List<String> cases = new ArrayList<>();
        for (Map.Entry<String, JsonObject> each : MODELS.entrySet()) {
            Path own = folder.resolve(each.getKey());
            RandomFolder.write(own, each.getValue(), each.getKey().hashCode());
            ByteTokenizer.write(own);
            cases.add(reference(own));
        }
        List<String> results = PyTorch.run("llm/reference.py", cases);
        int i = 0;
        for (String name : MODELS.keySet()) {
            expected.put(name, new Gson().fromJson(results.get(i++), double[].class));
        }
    }

    /** Returns what PyTorch computes: steps on all texts, padded. */
    private String reference(Path own) throws Exception {
        JsonObject line = new JsonObject();
        try (LanguageModel model = LanguageModel.load(own);
                NDManager manager = NDManager.newBaseManager()) {
            TuningData data = data(model, LINES.size(), false);
            Batch batch = data.getData(manager, null, 0, 0).iterator().next();
            line.addProperty("folder", own.toString());
            line.add("ids", rows(batch.getData().head().toLongArray()));
            line.add("labels", rows(batch.getLabels().head().toLongArray()));
            line.addProperty("steps", STEPS + 1);
            line.addProperty("rate", RATE);
        }
        return line.toString();
    }

    private static JsonElement rows(long... all) {
        int width = all.length / LINES.size();
        long[][] rows = new long[LINES.size()][];
        Arrays.setAll(rows, i -> Arrays.copyOfRange(all, i * width, (i + 1) * width));
        return new Gson().toJsonTree(rows);
    }

    private TuningData data(LanguageModel model, int batch, boolean packed) throws Exception {
        return TuningData.builder()
                .setFile(file)
                .setModel(model)
                .optLength(LENGTH)
                .optSampling(batch, true)
                .optBucketed(!packed)
                .optPacked(packed)
                .build();
    }

    /** Returns models, the rows of a batch, whether they are packed, and ranks. */
    @DataProvider
    public static Object[][] batches() {
        List<Object[]> rows = new ArrayList<>();
        for (String model : MODELS.keySet()) {
            for (int batch : new int[] {LINES.size(), 2, 1, 4, 2 * LINES.size()}) {
                rows.add(new Object[] {model, batch, false});
            }
            if (!model.equals("gpt2")) { // packed they are 3 rows
                rows.add(new Object[] {model, 3, true});
                rows.add(new Object[] {model, 2, true});
                rows.add(new Object[] {model, 6, true});
            }
        }
        return rows.toArray(Object[][]::new);
    }

    @Test(dataProvider = "batches", timeOut = 120_000)
    public void testLossesArePyTorchs(String name, int batch, boolean packed) throws Exception {
        List<ParallelConfig> configs = new ArrayList<>();
        configs.add(ParallelConfig.tensor(2));
        configs.add(ParallelConfig.mesh(2, 2));
        if (name.equals("llama")) {
            List.of(1, 3, 4).forEach(ranks -> configs.add(ParallelConfig.tensor(ranks)));
        }
        for (ParallelConfig config : configs) {
            double[] losses = train(folder.resolve(name), config, batch, packed);
            for (int i = 0; i <= STEPS; i++) {
                double wanted = expected.get(name)[i];
                String what = config.describe() + ", step " + i;
                Assert.assertEquals(losses[i], wanted, TOLERANCE * wanted, what);
            }
        }
    }

    /** DJL's own loop takes the data, too. */
    @Test(timeOut = 60_000)
    public void testEasyTrain() throws Exception {
        try (LanguageModel model =
                        LanguageModel.builder(folder.resolve("llama"))
                                .optShardedLogits(true)
                                .load();
                ParallelTrainer trainer =
                        new ParallelTrainer(model.getModel(), config(), ParallelConfig.tensor(2))) {
            TuningData data = data(model, 3, true);
            EasyTrain.fit(trainer, STEPS, data, null);
            double loss = TuningSteps.evaluate(trainer, data.getData(trainer.getManager()));
            double wanted = expected.get("llama")[STEPS];
            Assert.assertEquals(loss, wanted, TOLERANCE * wanted);
        }
    }

    /** Returns the losses of steps that have all batches of an epoch, and of an evaluation. */
    private double[] train(Path path, ParallelConfig ranks, int batch, boolean packed)
            throws Exception {
        double[] losses = new double[STEPS + 1];
        try (LanguageModel model = LanguageModel.builder(path).optShardedLogits(true).load();
                ParallelTrainer trainer = new ParallelTrainer(model.getModel(), config(), ranks)) {
            TuningData data = data(model, batch, packed);
            trainer.initialize(new Shape(batch, LENGTH));
            for (int i = 0; i < STEPS; i++) {
                List<Batch> batches = new ArrayList<>();
                data.getData(trainer.getManager()).forEach(batches::add);
                losses[i] = TuningSteps.step(trainer, batches);
            }
            losses[STEPS] = TuningSteps.evaluate(trainer, data.getData(trainer.getManager()));
        }
        return losses;
    }

    private static DefaultTrainingConfig config() {
        Tracker rate = Tracker.fixed(RATE);
        return new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                .optOptimizer(Optimizer.sgd().setLearningRateTracker(rate).build());
    }
}
