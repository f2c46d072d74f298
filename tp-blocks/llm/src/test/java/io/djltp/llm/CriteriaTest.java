package io.djltp.llm;

import ai.djl.inference.Predictor;
import ai.djl.inference.streaming.IteratorBytesSupplier;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ModelZoo;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.translate.TranslateException;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import io.djltp.llm.zoo.LanguageModelFactory;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** DJL loads Hugging Face folders, and its predictors give what Generator and Embedder give. */
public class CriteriaTest {

    private static final List<String> TEXTS = List.of("hello", "h\u00fc", "a much longer hello");

    private final Path folder = TestFolder.create();
    private List<String> expected;

    @BeforeClass
    public void write() throws Exception {
        Path text = folder.resolve("text");
        RandomFolder.writeDecoder(text, "'max_position_embeddings': 90, 'eos_token_id': 262");
        Path vectors = folder.resolve("vectors");
        RandomFolder.writeEncoder(vectors);
        try (Generator generator = Generator.builder().setPath(text).optBatch(3).build()) {
            GenerationOptions options =
                    generator.getDefaults().toBuilder().optMaxTokens(40).build();
            expected = generator.generate(TEXTS, options).finish();
        }
    }

    private <I, O> Criteria.Builder<I, O> zoo(Class<I> input, Class<O> output, String name) {
        return Criteria.builder()
                .setTypes(input, output)
                .optEngine("PyTorch")
                .optGroupId("io.djltp.llm")
                .optOption("model_id", folder.resolve(name).toString());
    }

    @DataProvider
    public static Object[][] degrees() {
        return new Object[][] {{"1"}, {"2"}, {"3"}, {"max"}};
    }

    @Test(dataProvider = "degrees", timeOut = 60_000)
    public void testTextFollows(String degree) throws Exception {
        Criteria<String, String> criteria =
                zoo(String.class, String.class, "text")
                        .optOption("tensor_parallel_degree", degree)
                        .optOption("max_new_tokens", "40")
                        .optOption("max_length", "80")
                        .optOption("weights", "float32")
                        .optOption("batch", "3")
                        .build();
        try (ZooModel<String, String> model = criteria.loadModel();
                Predictor<String, String> predictor = model.newPredictor()) {
            Assert.assertEquals(predictor.predict(TEXTS.get(1)), expected.get(1));
            Assert.assertEquals(predictor.batchPredict(TEXTS), expected);
        }
    }

    @Test(timeOut = 60_000)
    public void testTextStreams() throws Exception {
        Criteria<String, IteratorBytesSupplier> criteria =
                zoo(String.class, IteratorBytesSupplier.class, "text")
                        .optOption("max_new_tokens", "40")
                        .build();
        try (ZooModel<String, IteratorBytesSupplier> model = criteria.loadModel();
                Predictor<String, IteratorBytesSupplier> predictor = model.newPredictor()) {
            for (int i = 0; i < TEXTS.size(); i++) {
                List<String> pieces = new ArrayList<>();
                predictor
                        .streamingPredict(TEXTS.get(i))
                        .getIterativeOutput()
                        .forEachRemaining(
                                piece -> pieces.add(new String(piece, StandardCharsets.UTF_8)));
                Assert.assertTrue(pieces.size() > 5, pieces.toString());
                Assert.assertEquals(String.join("", pieces), expected.get(i));
                String whole = predictor.predict(TEXTS.get(i)).getAsString();
                Assert.assertEquals(whole, expected.get(i));
            }
        }
    }

    /** As DJL Serving loads a folder, and asks. */
    @Test(timeOut = 60_000)
    public void testServingProperties() throws Exception {
        Files.writeString(
                folder.resolve("text/serving.properties"),
                """
                engine=PyTorch
                blockFactory=%1$s
                translatorFactory=%1$s
                option.hasParameter=false
                option.tensor_parallel_degree=2
                option.max_new_tokens=40
                """
                        .formatted(LanguageModelFactory.class.getName()));
        Criteria<Input, Output> criteria =
                Criteria.builder()
                        .setTypes(Input.class, Output.class)
                        .optModelUrls(folder.resolve("text").toUri().toString())
                        .build();
        try (ZooModel<Input, Output> model = criteria.loadModel();
                Predictor<Input, Output> predictor = model.newPredictor()) {
            Output output = predictor.predict(input(TEXTS.get(2)));
            Assert.assertEquals(output.getProperty("Content-Type", null), "application/json");
            Assert.assertEquals(text(output), expected.get(2));
            String request =
                    "{\"inputs\": \"hello\", \"parameters\": {\"max_new_tokens\": 5,"
                            + " \"temperature\": 0, \"top_k\": 3, \"top_p\": 0.9, \"min_p\": 0.1,"
                            + " \"seed\": 7, \"repetition_penalty\": 1, \"stop\": [\"no such\"]}}";
            String five = text(predictor.predict(input(request)));
            Assert.assertTrue(expected.get(0).startsWith(five), five);
            Assert.assertTrue(five.length() < expected.get(0).length(), five);
            Output streamed = predictor.streamingPredict(input(TEXTS.get(2))).getIterativeOutput();
            Assert.assertEquals(streamed.getData().getAsString(), expected.get(2));
            for (String[] wrong :
                    new String[][] {
                        {"{\"inputs\": \"hello\", \"parameters\": {\"topk\": 5}}", "topk"},
                        {"{\"inputs\": \"a\", \"parameters\": {\"top_p\": 5}}", "top-p"},
                        {"{\"inputs\": \"a\", \"parameters\": {\"seed\": []}}", "malformed"},
                        {"{\"text\": \"hello\"}", "no text"},
                        {"{", "malformed"},
                        {"{\"inputs\": \"\"}", "no tokens"},
                    }) {
                Refusals.expect(
                        TranslateException.class,
                        () -> predictor.predict(input(wrong[0])),
                        wrong[1]);
            }
        }
    }

    private static Input input(String text) {
        Input input = new Input();
        input.add(text);
        return input;
    }

    private static String text(Output output) {
        JsonObject json = JsonParser.parseString(output.getData().getAsString()).getAsJsonObject();
        return json.get("generated_text").getAsString();
    }

    @Test(timeOut = 60_000)
    public void testVectors() throws Exception {
        Criteria<String, float[]> criteria =
                zoo(String.class, float[].class, "vectors")
                        .optOption("tensor_parallel_degree", "2")
                        .build();
        try (ZooModel<String, float[]> model = criteria.loadModel();
                Predictor<String, float[]> predictor = model.newPredictor();
                Embedder embedder =
                        Embedder.load(folder.resolve("vectors"), ParallelConfig.tensor(1))) {
            List<float[]> vectors = predictor.batchPredict(TEXTS);
            List<float[]> all = embedder.embed(TEXTS);
            for (int i = 0; i < all.size(); i++) {
                for (int j = 0; j < 20; j++) {
                    Assert.assertEquals(vectors.get(i)[j], all.get(i)[j], 1e-5);
                }
            }
        }
    }

    @DataProvider
    public static Object[][] wrong() {
        return new Object[][] {
            {
                "text",
                String.class,
                "tensor_parallel_degre",
                "2",
                "tensor_parallel_degree, weights]"
            },
            {
                "text",
                String.class,
                "model",
                "2",
                "model is not known. Use one of [batch, max_length,"
            },
            {"text", String.class, "folder", "2", "max_new_tokens, model_id, tensor_parallel"},
            {"text", String.class, "tensor_parallel_degree", "two", "not two"},
            {"text", String.class, "tensor_parallel_degree", "7", "6 query heads"},
            {"text", String.class, "weights", "int3", "int3"},
            {"text", String.class, "max_length", "91", "90 positions"},
            {"text", float[].class, "batch", "1", "no encoder"},
            {"vectors", String.class, "batch", "1", "an encoder"},
            {"none", String.class, "batch", "1", "none"},
        };
    }

    @Test(dataProvider = "wrong", timeOut = 60_000)
    public void testBadInput(
            String name, Class<?> output, String option, String value, String message) {
        Criteria<String, ?> criteria =
                zoo(String.class, output, name).optOption(option, value).build();
        Exception e = Assert.expectThrows(Exception.class, criteria::loadModel);
        String all = e.getMessage() + (e.getCause() == null ? "" : e.getCause().getMessage());
        Assert.assertTrue(all.contains(message), all);
    }

    @Test
    public void testIsListed() {
        Assert.assertTrue(ModelZoo.hasModelZoo("io.djltp.llm"));
        Assert.assertTrue(
                ModelZoo.listModels().values().stream()
                        .flatMap(List::stream)
                        .anyMatch(mrl -> mrl.getGroupId().equals("io.djltp.llm")));
    }
}
