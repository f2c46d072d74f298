package io.djltp.llm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.util.Utils;

import com.google.gson.Gson;
import com.google.gson.JsonObject;

import io.djltp.internal.safetensors.SafetensorsFile;
import io.djltp.nn.LoraConfig;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.PyTorch;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
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
import java.util.Random;

/**
 * LoRA on 1 to 4 ranks and a mesh, against PyTorch's float64: losses, adapters, and logits with
 * adapters beside the weights and in them, from files of both.
 */
public class LoraTest {

    private static final double TOLERANCE = 1e-5; // of the loss, of the largest logit
    private static final int STEPS = 10;

    /** A model and its adapters. */
    private record Case(JsonObject model, LoraConfig lora) {}

    private static final Map<String, Case> CASES = new LinkedHashMap<>();

    static {
        LoraConfig all = LoraConfig.builder().optRank(3).optTargets(LoraConfig.ALL_LINEAR).build();
        CASES.put("llama", new Case(RandomFolder.config("llama", ""), all));
        CASES.put(
                "qwen2",
                new Case(
                        RandomFolder.config("qwen2", "'tie_word_embeddings': true"),
                        LoraConfig.builder().optAlpha(16).build()));
        CASES.put(
                "qwen3",
                new Case(
                        RandomFolder.config("qwen3", ""),
                        LoraConfig.builder()
                                .optRank(4)
                                .optAlpha(2.5f)
                                .optRankStabilized(true)
                                .optTargets("k_proj", "o_proj", "down_proj")
                                .build()));
        CASES.put("gpt2", new Case(RandomFolder.config("gpt2", ""), all));
    }

    private static final List<ParallelConfig> CONFIGS =
            List.of(
                    ParallelConfig.tensor(1),
                    ParallelConfig.tensor(2),
                    ParallelConfig.tensor(3),
                    ParallelConfig.tensor(4),
                    ParallelConfig.mesh(2, 2));

    private final Map<String, double[]> expected = new LinkedHashMap<>(); // losses, then logits
    private Path folder;
    private long[] ids;
    private long[] labels;

    @BeforeClass
    public void compute() throws Exception {
        folder = Files.createTempDirectory("lora");
        Random random = new Random(5);
        int count = TrainingTest.ROWS * TrainingTest.LENGTH;
        ids = random.longs(count, 0, 53).toArray();
        labels = random.longs(count, 0, 53).toArray();
        List<String> lines = new ArrayList<>();
        for (Map.Entry<String, Case> each : CASES.entrySet()) {
            Path own = base(each.getKey());
            RandomFolder.write(own, each.getValue().model(), each.getKey().hashCode());
            LanguageModel.Builder builder = LanguageModel.builder(own);
            try (LanguageModel model = builder.optLora(each.getValue().lora()).load()) {
                model.readWhole();
                model.saveAdapter(own.resolve("start"), DataType.FLOAT32);
            }
            JsonObject line = new JsonObject();
            line.addProperty("folder", own.toString());
            line.addProperty("adapter", own.resolve("start").toString());
            line.addProperty("save", Files.createDirectory(own.resolve("trained")).toString());
            line.add("ids", new Gson().toJsonTree(Expected.rows(TrainingTest.LENGTH, ids)));
            line.add("labels", new Gson().toJsonTree(Expected.rows(TrainingTest.LENGTH, labels)));
            line.addProperty("steps", STEPS);
            line.addProperty("rate", TrainingTest.RATE);
            lines.add(line.toString());
        }
        List<String> results = PyTorch.run("llm/reference.py", lines);
        int i = 0;
        for (String name : CASES.keySet()) {
            expected.put(name, new Gson().fromJson(results.get(i++), double[].class));
        }
    }

    @AfterClass(alwaysRun = true)
    public void deleteFolder() {
        Utils.deleteQuietly(folder);
    }

    private Path base(String name) {
        return folder.resolve(name);
    }

    @DataProvider
    public static Object[][] cases() {
        return CASES.keySet().stream().map(name -> new Object[] {name}).toArray(Object[][]::new);
    }

    @Test(dataProvider = "cases", timeOut = 120_000)
    public void trainedAdaptersArePyTorchs(String name) throws Exception {
        Path own = base(name);
        double[] wanted = Arrays.copyOf(expected.get(name), STEPS);
        for (ParallelConfig config : CONFIGS) {
            String what = name + ", " + config.describe();
            LanguageModel.Builder builder = LanguageModel.builder(own).optShardedLogits(true);
            Path saved = Files.createTempDirectory(folder, "saved");
            try (LanguageModel model = builder.optAdapter(own.resolve("start")).load();
                    ParallelTrainer trainer = TrainingTest.trainer(model, config)) {
                double[] losses = TrainingTest.train(trainer, ids, labels, STEPS);
                for (int i = 0; i < STEPS; i++) {
                    double limit = TOLERANCE * wanted[i];
                    Assert.assertEquals(losses[i], wanted[i], limit, what + ", step " + i);
                }
                Assert.assertTrue(losses[STEPS - 1] < losses[0], what);
                model.saveAdapter(saved, DataType.FLOAT32);
            }
            assertSame(saved, own.resolve("trained"), 1e-4, what);
        }
    }

    /** Compares the tensors of two adapters by the largest number of each. */
    private static void assertSame(Path found, Path wanted, double tolerance, String what)
            throws Exception {
        String file = "adapter_model.safetensors";
        try (SafetensorsFile one = SafetensorsFile.open(found.resolve(file));
                SafetensorsFile two = SafetensorsFile.open(wanted.resolve(file));
                NDManager manager = NDManager.newBaseManager()) {
            Assert.assertEquals(one.getTensors().keySet(), two.getTensors().keySet(), what);
            for (String name : two.getTensors().keySet()) {
                NDArray mine = one.read(name, manager);
                NDArray other = two.read(name, manager);
                double limit = tolerance * other.abs().max().getFloat();
                double error = mine.sub(other).abs().max().getFloat();
                Assert.assertTrue(error <= limit, what + ", " + name + ": " + error);
            }
        }
    }
}
