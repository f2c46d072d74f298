package io.djltp.zoo;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import ai.djl.Device;
import ai.djl.inference.Predictor;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.util.JsonUtils;
import ai.djl.util.Utils;

import com.google.gson.JsonArray;

import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * A model folder under the calls of DJL Serving, which is not on Maven Central: those of its {@code
 * ModelInfo} (load, newPredictor in each worker, batchPredict, close) in the version of June 2026.
 */
public class ServedModelTest {

    private static final int WORKERS = 3;

    private Path folder;

    @BeforeClass
    public void copyModel() throws IOException {
        folder = Files.createTempDirectory("served").resolve("lemmas");
        Files.createDirectories(folder);
        for (String name :
                new String[] {"model.safetensors", "serving.properties", "lexicon.tsv"}) {
            try (InputStream file = LemmaNetwork.class.getResourceAsStream("lemma-en/" + name)) {
                Files.copy(file, folder.resolve(name));
            }
        }
    }

    @AfterClass
    public void delete() {
        Utils.deleteQuietly(folder.getParent());
    }

    /** {@code ModelInfo.initialize} and {@code ModelInfo.load}. */
    private ZooModel<Input, Output> load(String degree) throws Exception {
        Properties properties = new Properties();
        try (InputStream file = Files.newInputStream(folder.resolve("serving.properties"))) {
            properties.load(file);
        }
        Map<String, Object> arguments = new HashMap<>();
        Map<String, String> options = new HashMap<>();
        for (String key : properties.stringPropertyNames()) {
            if (key.startsWith("option.")) {
                options.put(key.substring(7), properties.getProperty(key));
            } else {
                arguments.put(key, properties.getProperty(key));
            }
        }
        assertEquals(options.get("tensor_parallel_degree"), degree);
        ZooModel<Input, Output> model =
                Criteria.builder()
                        .setTypes(Input.class, Output.class)
                        .optModelUrls(folder.toUri().toURL().toString())
                        .optModelName(null)
                        .optEngine(properties.getProperty("engine"))
                        .optFilters(null)
                        .optArguments(arguments)
                        .optOptions(options)
                        .optArgument("batchifier", "stack")
                        .optDevice(Device.cpu())
                        .build()
                        .loadModel();
        model.setProperty("metric_dimension", "lemmas");
        return model;
    }

    private void setDegree(String degree) throws IOException {
        Path file = folder.resolve("serving.properties");
        List<String> lines = new ArrayList<>(Files.readAllLines(file));
        lines.removeIf(line -> line.startsWith("option.tensor_parallel_degree"));
        if (degree != null) {
            lines.add("option.tensor_parallel_degree=" + degree);
        }
        Files.write(file, lines);
    }

    @DataProvider
    public static Object[][] degrees() {
        return new Object[][] {{null, 1}, {"2", 2}, {"3", 3}};
    }

    @Test(dataProvider = "degrees", timeOut = 60_000)
    public void workersAnswerAtOnceAndTheModelIsLoadedAgain(String degree, int ranks)
            throws Exception {
        setDegree(degree);
        for (int time = 0; time < 2; time++) {
            try (ZooModel<Input, Output> model = load(degree)) {
                int actual =
                        model.getBlock() instanceof RankedNetwork
                                ? ((RankedNetwork) model.getBlock()).getRanks()
                                : 1;
                assertEquals(actual, ranks);
                serve(model);
                assertEquals(model.getModelPath(), folder);
            }
        }
    }

    private static void serve(ZooModel<Input, Output> model) throws Exception {
        ExecutorService workers = Executors.newFixedThreadPool(WORKERS);
        try {
            List<Future<?>> answers = new ArrayList<>();
            for (int i = 0; i < WORKERS; i++) {
                answers.add(
                        workers.submit(
                                () -> {
                                    try (Predictor<Input, Output> predictor =
                                            model.newPredictor()) {
                                        for (int k = 0; k < 5; k++) {
                                            answer(predictor);
                                        }
                                    }
                                    return null;
                                }));
            }
            for (Future<?> answer : answers) {
                answer.get();
            }
        } finally {
            workers.shutdownNow();
        }
    }

    private static void answer(Predictor<Input, Output> predictor) throws Exception {
        List<Output> outputs =
                predictor.batchPredict(List.of(input("went"), input("mice"), input("worst")));
        String[] lemmas = {"go", "mouse", "bad"};
        for (int i = 0; i < lemmas.length; i++) {
            String json = outputs.get(i).getData().getAsString();
            JsonArray best = JsonUtils.GSON.fromJson(json, JsonArray.class);
            assertEquals(best.size(), 5, json);
            assertTrue(json.contains("\"" + lemmas[i] + "\""), json);
            assertEquals(best.get(0).getAsJsonObject().get("className").getAsString(), lemmas[i]);
        }
    }

    private static Input input(String word) {
        Input input = new Input();
        input.addProperty("Content-Type", "text/plain");
        input.add("data", word);
        return input;
    }
}
