package io.djltp.llm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.ParameterStore;
import ai.djl.translate.NoopTranslator;

import com.google.gson.Gson;
import com.google.gson.JsonObject;

import io.djltp.rank.ParallelConfig;
import io.djltp.testing.PyTorch;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;
import io.djltp.training.ParallelPredictor;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

/** Features of random encoders on 1 to 4 ranks, against PyTorch's float64. */
public class EncoderTest extends TestFolder {

    private static final double TOLERANCE = 1e-5; // of the largest number
    private static final Shape INPUT = new Shape(2, 9);

    @DataProvider
    public static Object[][] models() {
        return new Object[][] {
            {"'hidden_act': 'gelu'", ""},
            {"'hidden_act': 'relu', 'type_vocab_size': 3, 'layer_norm_eps': 1e-5", "bert."},
            {"'model_type': 'roberta', 'pad_token_id': 1, 'layer_norm_eps': 1e-5", "roberta."},
            {"'model_type': 'xlm-roberta', 'pad_token_id': 2, 'type_vocab_size': 1", ""},
            {"'model_type': 'distilbert', 'activation': 'relu'", "distilbert."},
            {"'model_type': 'distilbert', 'sinusoidal_pos_embds': true, 'dropout': 0.1", ""},
        };
    }

    private static JsonObject config(String fields) {
        String sizes =
                "{'model_type': 'bert', 'vocab_size': 53, 'hidden_size': 20,"
                        + " 'num_hidden_layers': 2, 'num_attention_heads': 5,"
                        + " 'intermediate_size': 31, 'max_position_embeddings': 12,"
                        + " 'layer_norm_eps': 1e-12, 'pad_token_id': 0,"
                        + " 'position_embedding_type': 'absolute', 'hidden_dropout_prob': 0.1}";
        JsonObject config = RandomFolder.config(sizes);
        RandomFolder.config("{" + fields + "}")
                .entrySet()
                .forEach(each -> config.add(each.getKey(), each.getValue()));
        if (isDistilBert(config)) {
            Map.of(
                            "hidden_size", "dim",
                            "num_hidden_layers", "n_layers",
                            "num_attention_heads", "n_heads",
                            "intermediate_size", "hidden_dim")
                    .forEach((name, own) -> config.add(own, config.remove(name)));
            List.of("layer_norm_eps", "hidden_dropout_prob", "position_embedding_type")
                    .forEach(config::remove);
        }
        return config;
    }

    private static boolean isDistilBert(JsonObject config) {
        return config.get("model_type").getAsString().equals("distilbert");
    }

    @Test(dataProvider = "models", timeOut = 120_000)
    public void testFeaturesArePyTorchs(String fields, String prefix) throws Exception {
        JsonObject config = config(fields);
        RandomFolder.write(folder, config, 7);
        Map<String, Shape> tensors = new LinkedHashMap<>();
        RandomFolder.tensors(config).forEach((name, shape) -> tensors.put(prefix + name, shape));
        if (!prefix.isEmpty()) { // a model around it
            tensors.put("cls.predictions.bias", new Shape(53));
        } else {
            boolean distil = isDistilBert(config);
            tensors.put(distil ? "vocab_layer_norm.bias" : "pooler.dense.bias", new Shape(20));
        }
        RandomFolder.write(folder.resolve("model.safetensors"), tensors, 7);
        long[] ids = new Random(1).longs(INPUT.size(), 0, 53).toArray();
        int types = ModelConfig.read(folder).getTokenTypes();
        long[] kinds = new Random(2).longs(INPUT.size(), 0, Math.max(1, types)).toArray();
        long[] mask = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0};
        JsonObject line = new JsonObject();
        line.addProperty("folder", folder.toString());
        Gson gson = new Gson();
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray[] inputs = new NDArray[3];
            int i = 0;
            for (long[] each : List.of(ids, mask, kinds)) {
                inputs[i++] = manager.create(each, INPUT);
                long[][] rows = {Arrays.copyOf(each, 9), Arrays.copyOfRange(each, 9, 18)};
                line.add(List.of("ids", "mask", "kinds").get(i - 1), gson.toJsonTree(rows));
            }
            inputs = Arrays.copyOf(inputs, types == 0 ? 2 : 3);
            String result = PyTorch.run("llm/reference.py", List.of(line.toString())).get(0);
            double[] expected = gson.fromJson(result, double[].class);
            for (int ranks = 1; ranks <= 4; ranks++) {
                try (LanguageModel model = LanguageModel.load(folder);
                        ParallelPredictor<NDList, NDList> predictor =
                                new ParallelPredictor<>(
                                        model.getModel(),
                                        new NoopTranslator(),
                                        ParallelConfig.tensor(ranks))) {
                    Assert.assertTrue(model.getConfig().isEncoder());
                    NDArray found = predictor.predict(new NDList(inputs)).head();
                    // what is padding too: it sees the other tokens
                    Expected.check(
                            found.toFloatArray(),
                            expected,
                            TOLERANCE,
                            "bert on " + ranks + " ranks");
                }
            }
            Path saved = folder.resolve("saved");
            Path layer = Files.createDirectories(folder.resolve("3_Dense"));
            Files.writeString(layer.resolve("config.json"), "{}");
            Files.writeString(layer.resolve("notes.txt"), "mine");
            try (LanguageModel model = LanguageModel.load(folder)) {
                model.readWhole();
                model.save(saved, DataType.FLOAT32);
            }
            Assert.assertEquals(Files.readString(saved.resolve("3_Dense/config.json")), "{}");
            Assert.assertTrue(Files.notExists(saved.resolve("3_Dense/notes.txt")));
            try (LanguageModel model = LanguageModel.load(saved);
                    ParallelPredictor<NDList, NDList> predictor =
                            new ParallelPredictor<>(
                                    model.getModel(),
                                    new NoopTranslator(),
                                    ParallelConfig.tensor(2))) {
                NDArray found = predictor.predict(new NDList(inputs)).head();
                Expected.check(found.toFloatArray(), expected, TOLERANCE, "bert, saved");
            }
        }
    }

    @Test(timeOut = 60_000)
    public void testBadFieldsAndInputsAreNamed() throws Exception {
        JsonObject roberta = config("'model_type': 'roberta', 'pad_token_id': 11");
        Refusals.throwsArgument(
                () -> ModelConfig.parse(roberta.toString()), "pad_token_id is 11, and must be");
        JsonObject distil = config("'model_type': 'distilbert'");
        RandomFolder.write(folder, distil, 7);
        try (LanguageModel model = LanguageModel.load(folder);
                NDManager manager = NDManager.newBaseManager()) {
            model.readWhole();
            NDArray ids = manager.zeros(INPUT, DataType.INT64);
            NDList three = new NDList(ids, ids.onesLike(), ids);
            ParameterStore store = new ParameterStore(manager, false);
            Refusals.throwsArgument(
                    () -> model.getModel().getBlock().forward(store, three, false),
                    "a distilbert knows 0");
        }
    }

    @Test(timeOut = 60_000)
    public void testDoesNotGenerate() throws IOException {
        RandomFolder.write(folder, config(""), 7);
        Refusals.throwsArgument(
                () -> Generator.builder().setPath(folder).build(), "is an encoder, bert");
    }
}
