package io.djltp.llm;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.ParameterStore;
import ai.djl.translate.NoopTranslator;

import com.google.gson.Gson;
import com.google.gson.JsonObject;

import io.djltp.internal.safetensors.SafetensorsFile;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.TestFolder;
import io.djltp.training.ParallelPredictor;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;

/**
 * Logits of random models of all architectures, of odd sizes, on 1 to 4 ranks, against PyTorch's
 * float64 ({@code src/test/resources/llm/reference.py}).
 */
public class ArchitecturesTest {

    private static final double TOLERANCE = 1e-5; // of the largest logit
    static final int ROWS = 2;
    static final int LENGTH = 19;

    static final Map<String, JsonObject> MODELS = new LinkedHashMap<>();

    static {
        add("llama", "llama", "'tie_word_embeddings': true");
        add("llama untied", "llama", "'rope_theta': 500.0, 'num_hidden_layers': 1");
        add("llama of one key", "llama", "'num_key_value_heads': 1, 'num_attention_heads': 5");
        add("llama of 5 heads", "llama", "'num_key_value_heads': 5, 'num_attention_heads': 5");
        add("llama with biases", "llama", "'attention_bias': true, 'mlp_bias': true");
        add("llama of old", "llama", "'hidden_size': 24, 'head_dim': null, 'hidden_act': 'gelu'");
        String longer = "'max_position_embeddings': 8, 'rope_scaling': ";
        add("llama linear", "llama", longer + "{'type': 'linear', 'factor': 2.5}");
        add("llama dynamic", "llama", longer + "{'rope_type': 'dynamic', 'factor': 2.0}");
        add(
                "llama 3.1",
                "llama",
                longer
                        + "{'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0,"
                        + " 'high_freq_factor': 4.0, 'original_max_position_embeddings': 8}");
        add(
                "qwen2 yarn",
                "qwen2",
                longer
                        + "{'type': 'yarn', 'factor': 4.0,"
                        + " 'original_max_position_embeddings': 8}");
        add("mistral", "mistral", "'sliding_window': null");
        add("mistral sliding", "mistral", "'sliding_window': 5");
        String alternating = "'layer_types': ['full_attention', 'sliding_attention']";
        add("mistral alternating", "mistral", "'sliding_window': 5, " + alternating);
        add("ministral", "ministral", "'sliding_window': 5");
        add("qwen2", "qwen2", "'tie_word_embeddings': true, 'sliding_window': 5");
        add(
                "qwen2 sliding",
                "qwen2",
                "'use_sliding_window': true, 'sliding_window': 5, 'max_window_layers': 1");
        add("qwen3", "qwen3", "'tie_word_embeddings': true, 'rope_theta': 1000000");
        add("qwen3 with biases", "qwen3", "'attention_bias': true, 'hidden_act': 'relu'");
        add("smollm3", "smollm3", "'no_rope_layer_interval': 2, 'mlp_bias': true");
        add(
                "smollm3 sliding",
                "smollm3",
                "'no_rope_layers': [0, 1], 'use_sliding_window': true, 'sliding_window': 5,"
                        + " 'tie_word_embeddings': false, "
                        + longer
                        + "{'type': 'yarn', 'factor': 4.0}");
        add("phi3", "phi3", "'sliding_window': 5, 'original_max_position_embeddings': 32");
        String divisors = "'short_factor': [1.1, 1.5], 'long_factor': [2.5, 4]}";
        add(
                "phi3 longrope",
                "phi3",
                "'partial_rotary_factor': 0.7, 'original_max_position_embeddings': 8,"
                        + " 'rope_scaling': {'type': 'longrope', "
                        + divisors);
        add(
                "phi3 longrope of a short text",
                "phi3",
                "'original_max_position_embeddings': 24, 'rope_parameters': {'rope_type': 'longrope',"
                        + " 'partial_rotary_factor': 0.7, "
                        + divisors);
        add("phi3 tied", "phi3", "'tie_word_embeddings': true, 'num_key_value_heads': null");
        add("starcoder2", "starcoder2", "'sliding_window': 5");
        add(
                "starcoder2 without biases",
                "starcoder2",
                "'use_bias': false, 'tie_word_embeddings': false, 'mlp_type': 'default',"
                        + " 'norm_type': 'layer_norm', 'scale_attention_softmax_in_fp32': true");
        add("gpt2", "gpt2", "'n_inner': null");
        add("gpt2 untied", "gpt2", "'tie_word_embeddings': false, 'n_inner': 33");
        add("gpt2 gelu", "gpt2", "'activation_function': 'gelu'");
    }

    private Map<String, double[]> expected;
    private final Path folder = TestFolder.create();
    private long[] ids;

    private static void add(String name, String modelType, String fields) {
        MODELS.put(name, RandomFolder.config(modelType, fields));
    }

    @BeforeClass
    public void compute() throws Exception {
        Random random = new Random(3);
        ids = random.longs((long) ROWS * LENGTH, 0, 53).toArray();
        Map<String, ?> input = Map.of("ids", Expected.rows(LENGTH, ids));
        expected = Expected.compute(folder, MODELS, input);
    }

    @DataProvider
    public static Object[][] models() {
        return MODELS.keySet().stream().map(name -> new Object[] {name}).toArray(Object[][]::new);
    }

    @Test(dataProvider = "models", timeOut = 120_000)
    public void testEqualsPyTorchOnRanks(String name) throws Exception {
        for (int ranks = 1; ranks <= 4; ranks++) {
            try (LanguageModel model = LanguageModel.load(folder.resolve(name))) {
                check(name, ranks + " ranks", logits(model.getModel(), ids, ranks));
            }
        }
    }

    static float[] logits(Model model, long[] ids, int ranks) throws Exception {
        NDManager manager = model.getNDManager();
        try (ParallelPredictor<NDList, NDList> predictor =
                        new ParallelPredictor<>(
                                model, new NoopTranslator(), ParallelConfig.tensor(ranks));
                NDArray input = manager.create(ids, new Shape(ROWS, LENGTH))) {
            return predictor.predict(new NDList(input)).head().toFloatArray();
        }
    }

    private void check(String name, String what, float[] found) {
        Expected.check(found, expected.get(name), TOLERANCE, name + ", " + what);
    }

    /** Saved, read whole again and computed by DJL alone, it is the same model. */
    @Test(dataProvider = "models", timeOut = 120_000)
    public void testSavesWhatItLoads(String name) throws Exception {
        Path saved = folder.resolve(name + " saved");
        try (LanguageModel model = LanguageModel.load(folder.resolve(name))) {
            model.readWhole();
            model.save(saved, DataType.FLOAT32);
        }
        try (LanguageModel model = LanguageModel.load(saved)) {
            model.readWhole();
            check(name, "saved", whole(model.getModel()));
        }
        JsonObject config = MODELS.get(name).deepCopy();
        config.addProperty("torch_dtype", "float32");
        String text = Files.readString(saved.resolve("config.json"));
        Assert.assertEquals(new Gson().fromJson(text, JsonObject.class), config, name); // and null
        try (SafetensorsFile file = SafetensorsFile.open(saved.resolve("model.safetensors"))) {
            Map<String, Shape> shapes = new LinkedHashMap<>();
            file.getTensors().values().forEach(each -> shapes.put(each.name(), each.shape()));
            Assert.assertEquals(shapes, RandomFolder.tensors(MODELS.get(name)), name);
        }
    }

    @DataProvider
    public static Object[][] withoutHead() {
        return new Object[][] {{"llama"}, {"qwen3"}, {"phi3 tied"}, {"starcoder2"}, {"gpt2"}};
    }

    /** The names of AutoModel, which has no head, are those of the same tensors. */
    @Test(dataProvider = "withoutHead", timeOut = 60_000)
    public void testNamesWithoutHead(String name) throws Exception {
        Path own = folder.resolve(name + " alone");
        RandomFolder.writeAlone(own, MODELS.get(name), name.hashCode());
        try (LanguageModel model = LanguageModel.load(own)) {
            check(name, "without head", logits(model.getModel(), ids, 2));
        }
    }

    @Test(timeOut = 60_000)
    public void testMoreRanksThanHeads() throws Exception {
        try (LanguageModel model = LanguageModel.load(folder.resolve("llama of 5 heads"))) {
            Exception e =
                    Assert.expectThrows(Exception.class, () -> logits(model.getModel(), ids, 6));
            String message = "" + e.getMessage();
            Assert.assertTrue(message.contains("at most 5 tensor-parallel ranks"), message);
        }
    }

    @Test(timeOut = 60_000)
    public void testSavesInBfloat16() throws Exception {
        Path saved = folder.resolve("half");
        Path source = folder.resolve("llama");
        try (LanguageModel model = LanguageModel.load(source)) {
            model.readWhole();
            model.save(saved, DataType.BFLOAT16);
        }
        String config = Files.readString(saved.resolve("config.json"));
        Assert.assertTrue(config.contains("\"torch_dtype\": \"bfloat16\""), config);
        long bytes = Files.size(saved.resolve("model.safetensors"));
        Assert.assertTrue(bytes < 0.6 * Files.size(source.resolve("model.safetensors")));
        try (LanguageModel model = LanguageModel.load(saved)) {
            Assert.assertEquals(
                    logits(model.getModel(), ids, 2).length, expected.get("llama").length);
        }
    }

    private float[] whole(Model model) {
        try (NDManager manager = model.getNDManager().newSubManager()) {
            NDArray input = manager.create(ids, new Shape(ROWS, LENGTH));
            ParameterStore store = new ParameterStore(manager, false);
            return model.getBlock().forward(store, new NDList(input), false).head().toFloatArray();
        }
    }
}
