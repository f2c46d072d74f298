package io.djltp.llm;

import ai.djl.MalformedModelException;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import com.google.gson.Gson;
import com.google.gson.JsonObject;

import io.djltp.checkpoint.CheckpointListener;
import io.djltp.collective.CollectiveCounts;
import io.djltp.internal.safetensors.SafetensorsFile;
import io.djltp.nn.LoraConfig;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.PyTorch;
import io.djltp.testing.Refusals;
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
        CASES.put("phi3", new Case(RandomFolder.config("phi3", ""), all));
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
    private final Path folder = TestFolder.create();
    private long[] ids;
    private long[] labels;

    @BeforeClass
    public void compute() throws Exception {
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

    @Test(dataProvider = "cases", timeOut = 120_000)
    public void logitsAreEqualBesideAndMerged(String name) throws Exception {
        Path own = base(name);
        Path trained = own.resolve("trained"); // written by PyTorch
        double[] wanted = expected.get(name);
        wanted = Arrays.copyOfRange(wanted, STEPS, wanted.length);
        Path merged = own.resolve("merged");
        try (LanguageModel model = LanguageModel.builder(own).optAdapter(trained).load()) {
            model.readWhole();
            Expected.check(logits(model), wanted, TOLERANCE, name + ", beside");
            model.save(merged, DataType.FLOAT32);
        }
        try (LanguageModel model = LanguageModel.load(merged)) {
            model.readWhole();
            Expected.check(logits(model), wanted, TOLERANCE, name + ", merged");
        }
        Path alone = own.resolve("alone");
        RandomFolder.writeAlone(alone, CASES.get(name).model(), name.hashCode());
        int[] prompt = Arrays.stream(ids, 0, TrainingTest.LENGTH).mapToInt(i -> (int) i).toArray();
        double[] last = Arrays.copyOfRange(wanted, 53 * (prompt.length - 1), 53 * prompt.length);
        for (int ranks = 1; ranks <= 3; ranks++) {
            try (Generator generator =
                    Generator.builder()
                            .setPath(ranks < 3 ? own : alone)
                            .optAdapter(trained)
                            .optConfig(ParallelConfig.tensor(ranks))
                            .build()) {
                String what = name + ", generated on " + ranks;
                Expected.check(generator.getLogits(prompt), last, 1e-4, what);
            }
        }
    }

    private float[] logits(LanguageModel model) {
        try (NDManager manager = NDManager.newBaseManager()) {
            Shape shape = new Shape(TrainingTest.ROWS, TrainingTest.LENGTH);
            return RandomFolder.outputs(model, manager.create(ids, shape)).toFloatArray();
        }
    }

    /** With dropout: new adapters, their values after steps, and what a step communicates. */
    @Test(timeOut = 120_000)
    public void anyNumberOfRanksTrainsTheSame() throws Exception {
        LoraConfig config =
                LoraConfig.builder()
                        .optRank(2)
                        .optDropout(0.25f)
                        .optTargets(LoraConfig.ALL_LINEAR)
                        .build();
        double[] wanted = null;
        for (int ranks = 1; ranks <= 4; ranks++) {
            Path start = folder.resolve("start" + ranks);
            Path end = folder.resolve("end" + ranks);
            ParallelConfig parallel = ParallelConfig.tensor(ranks);
            LanguageModel.Builder builder = LanguageModel.builder(base("llama"));
            Engine.getInstance().setRandomSeed(7);
            try (LanguageModel model = builder.optShardedLogits(true).optLora(config).load();
                    ParallelTrainer trainer = TrainingTest.trainer(model, parallel)) {
                model.saveAdapter(start, DataType.FLOAT32);
                double[] losses = TrainingTest.train(trainer, ids, labels, STEPS);
                model.saveAdapter(end, DataType.FLOAT32);
                wanted = wanted == null ? losses : wanted;
                for (int i = 0; i < STEPS; i++) {
                    Assert.assertEquals(losses[i], wanted[i], TOLERANCE * wanted[i]);
                }
                model.getModel().getBlock().getParameters().values().stream()
                        .filter(each -> !List.of("A", "B").contains(each.getName()))
                        .forEach(each -> assertFrozen(trainer, each));
            }
            String what = ranks + " ranks";
            assertSame(start, folder.resolve("start1"), 0, what);
            assertSame(end, folder.resolve("end1"), 1e-4, what);
        }
    }

    private static void assertFrozen(ParallelTrainer trainer, Parameter parameter) {
        Assert.assertFalse(parameter.requiresGradient(), parameter.getName());
        NDArray held = trainer.getParameterStore(0).getValue(parameter, null, false);
        Assert.assertFalse(held.hasGradient(), parameter.getName());
    }

    /** One sum of gradients: of what is on all ranks, or of shared key/value heads without. */
    @Test(timeOut = 120_000)
    public void aStepSumsGradientsOnce() throws Exception {
        LoraConfig all = LoraConfig.builder().optTargets(LoraConfig.ALL_LINEAR).build();
        List<CollectiveCounts> counts = new ArrayList<>();
        for (boolean adapted : new boolean[] {false, true}) {
            LanguageModel.Builder builder =
                    LanguageModel.builder(base("llama")).optShardedLogits(true);
            try (LanguageModel model = (adapted ? builder.optLora(all) : builder).load();
                    ParallelTrainer trainer =
                            TrainingTest.trainer(model, ParallelConfig.tensor(2))) {
                TrainingTest.train(trainer, ids, labels, 1);
                CollectiveCounts before = trainer.getCollectiveCounts();
                TrainingTest.train(trainer, ids, labels, 1);
                counts.add(trainer.getCollectiveCounts().minus(before));
            }
        }
        Assert.assertEquals(counts.get(0).toString(), "11 all-reduce, 2 all-gather");
        Assert.assertEquals(counts.get(1).toString(), counts.get(0).toString());
    }

    @Test(timeOut = 120_000)
    public void trainingGoesOnFromACheckpoint() throws Exception {
        Path checkpoints = folder.resolve("checkpoints");
        LoraConfig config = LoraConfig.builder().optDropout(0.25f).build();
        double[] losses = new double[STEPS];
        for (int part = 0; part < 2; part++) { // on 2 ranks, and then on 3
            LanguageModel.Builder builder = LanguageModel.builder(base("llama"));
            CheckpointListener listener =
                    CheckpointListener.builder().setFolder(checkpoints).build();
            ParallelConfig parallel = ParallelConfig.tensor(2 + part);
            Engine.getInstance().setRandomSeed(7);
            try (listener;
                    LanguageModel model = builder.optShardedLogits(true).optLora(config).load();
                    ParallelTrainer trainer = TrainingTest.trainer(model, parallel, listener)) {
                Assert.assertEquals(listener.resume(trainer), part == 1);
                double[] own = TrainingTest.train(trainer, ids, labels, STEPS / 2);
                System.arraycopy(own, 0, losses, part * STEPS / 2, STEPS / 2);
                if (part == 0) {
                    listener.save();
                    Assert.assertTrue(listener.await());
                }
            }
        }
        Engine.getInstance().setRandomSeed(7);
        LanguageModel.Builder builder = LanguageModel.builder(base("llama"));
        try (LanguageModel model = builder.optShardedLogits(true).optLora(config).load();
                ParallelTrainer trainer = TrainingTest.trainer(model, ParallelConfig.tensor(2))) {
            double[] whole = TrainingTest.train(trainer, ids, labels, STEPS);
            for (int i = 0; i < STEPS; i++) {
                Assert.assertEquals(losses[i], whole[i], TOLERANCE * whole[i], "step " + i);
            }
        }
    }

    @DataProvider
    public static Object[][] wrong() {
        return new Object[][] {
            {"'peft_type': 'LOHA'", "peft_type is \"LOHA\"; known are [LORA]"},
            {"'bias': 'all'", "bias is \"all\"; known are [none]"},
            {"'use_dora': true", "use_dora is true, which is not implemented"},
            {"'modules_to_save': ['lm_head']", "modules_to_save is [\"lm_head\"], which"},
            {"'rank_pattern': {'q_proj': 4}", "rank_pattern is {\"q_proj\":4}, which"},
            {"'layers_to_transform': [0]", "layers_to_transform is [0], which"},
            {"'fan_in_fan_out': true", "fan_in_fan_out is true, and the model is no GPT-2"},
            {"'init_lora_weights': 'pissa'", "init_lora_weights is \"pissa\""},
            {"'target_modules': 3", "target_modules is 3, and must be"},
            {"'target_modules': ['query']", "of the name [query]"},
            {"'target_modules': ['up_proj']", "are one layer here"},
            {"'target_modules': ['q_proj']", "is no parameter's"},
            {"'target_modules': '.*'", "is missing"},
            {"'r': 5", "parameter layers.layer0.attention.query.lora.A (5, 20) is not"},
            {"'r': 0", "r is 0, and must be a whole number above 0"},
        };
    }

    @Test(dataProvider = "wrong", timeOut = 60_000)
    public void wrongAdaptersThrow(String fields, String message) throws Exception {
        Path own = Files.createTempDirectory(folder, "wrong");
        Path qwen = base("qwen2"); // q_proj and v_proj
        for (String file : List.of("adapter_config.json", "adapter_model.safetensors")) {
            Files.copy(qwen.resolve("trained").resolve(file), own.resolve(file));
        }
        Path file = own.resolve("adapter_config.json");
        JsonObject config = new Gson().fromJson(Files.readString(file), JsonObject.class);
        RandomFolder.config("{" + fields + "}").asMap().forEach(config::add);
        Files.writeString(file, config.toString());
        Refusals.expect(
                MalformedModelException.class,
                () -> Generator.builder().setPath(qwen).optAdapter(own).build(),
                message);
    }

    @Test(timeOut = 60_000)
    public void newAdaptersAreChecked() throws Exception {
        LanguageModel.Builder builder = LanguageModel.builder(base("llama"));
        Refusals.throwsArgument(
                () -> builder.optLora(LoraConfig.builder().optTargets("lm_head").build()).load(),
                "of the name [lm_head]");
        try (LanguageModel model = builder.optLora(LoraConfig.builder().build()).load()) {
            Refusals.throwsArgument(
                    () -> Generator.builder().setModel(model).build(), "save them (saveAdapter)");
        }
        try (LanguageModel model = LanguageModel.load(base("llama"))) {
            Refusals.throwsState(
                    () -> model.saveAdapter(folder.resolve("none"), DataType.FLOAT32),
                    "The model has no adapters");
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
