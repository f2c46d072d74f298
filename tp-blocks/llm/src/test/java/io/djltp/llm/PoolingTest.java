package io.djltp.llm;

import ai.djl.MalformedModelException;
import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.safetensors.SafetensorsFile;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** How vectors of texts are made, as the files of sentence-transformers say it. */
public class PoolingTest {

    private static final String MODULES =
            "[{'idx': 0, 'path': '', 'type': 'sentence_transformers.models.Transformer'}, {'idx':"
                    + " 1, 'path': '1_Pooling', 'type': 'sentence_transformers.models.Pooling'}%s]";
    private static final String NORMALIZE =
            ", {'type': 'sentence_transformers.models.Normalize', 'path': '2_Normalize'}";
    private static final String DENSE =
            ", {'type': 'sentence_transformers.base.modules.dense.Dense', 'path': '2_Dense'}";
    private static final String CONFIG = "1_Pooling/config.json";
    private static final String SETTINGS = "config_sentence_transformers.json";

    private Path folder;

    @BeforeMethod
    public void makeFolder() throws IOException {
        folder = TestFolder.create();
        Files.createDirectory(folder.resolve("1_Pooling"));
        Files.createDirectory(folder.resolve("2_Dense"));
        write("modules.json", MODULES.formatted(""));
        write(CONFIG, "{'pooling_mode_mean_tokens': true}");
    }

    private void write(String name, String json) throws IOException {
        Files.writeString(folder.resolve(name), json.replace('\'', '"'));
    }

    @DataProvider
    public static Object[][] modes() {
        float root = (float) Math.sqrt(2);
        return new Object[][] { // of the tokens 3, 0 and 5, 8
            {"'pooling_mode_mean_tokens': true", new float[] {4, 4}},
            {
                "'pooling_mode_cls_token': true, 'pooling_mode_mean_tokens': false",
                new float[] {3, 0}
            },
            {"'pooling_mode_lasttoken': true, 'include_prompt': false", new float[] {5, 8}},
            {"'pooling_mode_mean_sqrt_len_tokens': true", new float[] {8 / root, 8 / root}},
            {
                "'pooling_mode_mean_tokens': true, 'pooling_mode_cls_token': true",
                new float[] {3, 0, 4, 4}
            },
            {"'embedding_dimension': 2, 'pooling_mode': 'max'", new float[] {5, 8}},
            {"'pooling_mode': ['weightedmean', 'cls']", new float[] {13 / 3f, 16 / 3f, 3, 0}},
            {"'embedding_dimension': 2", new float[] {4, 4}},
        };
    }

    /** A text alone has the vector that it has beside a longer one. */
    @Test(dataProvider = "modes")
    public void testPools(String config, float[] expected) throws Exception {
        write(CONFIG, "{" + config + "}");
        Pooling pooling = Pooling.read(folder, 16, null);
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray alone = manager.create(new float[] {3, 0, 5, 8}, new Shape(1, 2, 2));
            NDArray one = pooling.pool(alone, manager.ones(new Shape(1, 2)));
            Assert.assertEquals(one.toFloatArray(), expected, 1e-6f);
            float[] values = {1, 1, 1, 1, 1, 1, 3, 0, 5, 8, 9, 9};
            NDArray filled = manager.create(values, new Shape(2, 3, 2));
            NDArray mask = manager.create(new int[] {1, 1, 1, 1, 1, 0}, new Shape(2, 3));
            NDArray two = pooling.pool(filled, mask);
            Assert.assertEquals(two.get(1).toFloatArray(), expected, 1e-6f);
        }
    }

    @Test
    public void testReadsLimits() throws Exception {
        Assert.assertFalse(Pooling.read(folder, 16, null).normalized());
        Assert.assertEquals(Pooling.read(folder, 16, null).longest(), 16);
        write("tokenizer_config.json", "{'model_max_length': 1e30}");
        Assert.assertEquals(Pooling.read(folder, 16, null).longest(), 16);
        write("tokenizer_config.json", "{'model_max_length': 9}");
        Assert.assertEquals(Pooling.read(folder, 16, null).longest(), 9);
        write("sentence_roberta_config.json", "{'max_seq_length': 7, 'do_lower_case': true}");
        Assert.assertEquals(Pooling.read(folder, 16, null).longest(), 7);
        write(SETTINGS, "{'prompts': {'query': 'Find: '}, 'default_prompt_name': 'query'}");
        write("modules.json", MODULES.formatted(NORMALIZE));
        Refusals.expect(
                MalformedModelException.class,
                () -> Pooling.read(folder, 16, "other"),
                "other is none of the prompts {\"query\":\"Find: \"}");
        Pooling pooling = Pooling.read(folder, 16, null);
        Assert.assertEquals(Pooling.read(folder, 16, "query"), pooling);
        Assert.assertTrue(pooling.normalized());
        ByteTokenizer.write(folder);
        try (HuggingFaceTokenizer words =
                pooling.tokenizer(folder.resolve(LanguageModel.TOKENIZER))) {
            String text = words.decode(pooling.ids(words, "ABCDE"));
            Assert.assertEquals(text, "find: a"); // a token a letter
        }
        Files.delete(folder.resolve("modules.json"));
        Assert.assertTrue(Pooling.read(folder, 16, null).normalized());
    }

    @DataProvider
    public static Object[][] activations() {
        return new Object[][] {{"activation.Tanh"}, {"linear.Identity"}};
    }

    /** The vectors of an embedder are the outputs of the layer behind the pooling. */
    @Test(dataProvider = "activations", timeOut = 60_000)
    public void testLayerBehind(String function) throws Exception {
        RandomFolder.writeEncoder(folder);
        String config = "{'in_features': 20, 'out_features': 3, 'activation_function': '%s'}";
        write("2_Dense/config.json", config.formatted("torch.nn.modules." + function));
        Map<String, Shape> tensors = new LinkedHashMap<>();
        tensors.put("linear.weight", new Shape(3, 20));
        tensors.put("linear.bias", new Shape(3));
        Path file = folder.resolve("2_Dense/model.safetensors");
        RandomFolder.write(file, tensors, 3);
        float[] x = vector();
        Assert.assertEquals(x.length, 20);
        write("modules.json", MODULES.formatted(DENSE));
        float[] y = vector();
        Assert.assertEquals(y.length, 3);
        try (NDManager manager = NDManager.newBaseManager();
                SafetensorsFile layer = SafetensorsFile.open(file)) {
            float[] weight = layer.read("linear.weight", manager).toFloatArray();
            float[] bias = layer.read("linear.bias", manager).toFloatArray();
            for (int i = 0; i < 3; i++) {
                double sum = bias[i];
                for (int j = 0; j < 20; j++) {
                    sum += weight[20 * i + j] * x[j];
                }
                double expected = function.endsWith("Tanh") ? Math.tanh(sum) : sum;
                Assert.assertEquals(y[i], expected, 1e-5);
            }
        }
        write("2_Dense/config.json", config.formatted("torch.nn.modules.Other"));
        Refusals.expect(MalformedModelException.class, this::vector, "modules.Other");
        for (String size : List.of("'out_features': 3", "'in_features': 20")) {
            String wrong = size.replaceAll("\\d+", "4");
            write("2_Dense/config.json", config.formatted(function).replace(size, wrong));
            Refusals.expect(
                    MalformedModelException.class,
                    this::vector,
                    "2_Dense/config.json: " + wrong.replace("'", "").replace(":", " is"),
                    "linear.weight beside it has " + size.replaceAll("\\D+", "") + ": copy");
        }
    }

    private float[] vector() throws IOException, MalformedModelException {
        try (Embedder embedder = Embedder.load(folder, ParallelConfig.tensor(2))) {
            float[] vector = embedder.embed(List.of("a text")).get(0);
            Assert.assertEquals(vector.length, embedder.getWidth());
            return vector;
        }
    }

    @DataProvider
    public static Object[][] wrong() {
        String weights = ", {'type': 'sentence_transformers.models.WordWeights', 'path': '2_W'}";
        String prompts = "{'prompts': {'query': 'Find: '}, 'default_prompt_name': '%s'}";
        return new Object[][] {
            {"modules.json", MODULES.formatted(weights), "a sentence_transformers.models.WordWei"},
            {"modules.json", MODULES.formatted(NORMALIZE + DENSE), "Normalize, in this order"},
            {"modules.json", "{}", "is not a list of JSON"},
            {"modules.json", "[]", "has no Pooling"},
            {CONFIG, "{'pooling_mode': 'sum'}", "pooling_mode is sum; known are [cls, max"},
            {SETTINGS, prompts.formatted("other"), "none of the prompts"},
            {SETTINGS, prompts.formatted("query"), "with the prompt 'Find: '"},
        };
    }

    @Test
    public void testFileIsMissing() throws Exception {
        Files.delete(folder.resolve(CONFIG));
        Refusals.expect(
                FileNotFoundException.class,
                () -> Pooling.read(folder, 16, null),
                CONFIG + ", which the folder of the model needs");
    }

    @Test(dataProvider = "wrong")
    public void testRefuses(String file, String json, String message) throws Exception {
        write(CONFIG, "{'pooling_mode': 'mean', 'include_prompt': false}");
        write(file, json);
        Refusals.expect(
                MalformedModelException.class, () -> Pooling.read(folder, 16, null), message);
    }
}
