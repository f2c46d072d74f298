package io.djltp.zoo;

import static io.djltp.testing.Refusals.throwsArgument;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.Application;
import ai.djl.Device;
import ai.djl.inference.Predictor;
import ai.djl.modality.Classifications;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.repository.MRL;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ModelNotFoundException;
import ai.djl.repository.zoo.ModelZoo;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.util.JsonUtils;

import com.google.gson.JsonArray;

import io.djltp.testing.TestFolder;

import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
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
import java.util.stream.Stream;

/**
 * DJL finds the models of this library, and they answer alike at any degree, also under the calls
 * of DJL Serving, which is not on Maven Central: those of its {@code ModelInfo} (load, newPredictor
 * in each worker, batchPredict, close) in the version of June 2026.
 */
public class TensorParallelZooTest {

    private static final List<String> WORDS =
            List.of("went", "mice", "better", "children", "studies", "running", "unknownish");
    private static final int WORKERS = 3;

    private Path folder; // of the lemmatiser, as DJL Serving has it

    @BeforeClass
    public void copyModel() throws IOException {
        folder = TestFolder.create().resolve("lemmas");
        Files.createDirectories(folder);
        long bytes = 0;
        try (Stream<Path> files = Files.list(Path.of("src/main/resources/io/djltp/zoo/lemma-en"))) {
            for (Path file : files.toList()) {
                Files.copy(file, folder.resolve(file.getFileName()));
                bytes += Files.size(file);
            }
        }
        assertTrue(bytes < 1_000_000, "" + bytes); // of the repository
    }

    private static <I, O> Criteria.Builder<I, O> criteria(
            String artifact, Class<I> input, Class<O> output) {
        return Criteria.builder()
                .setTypes(input, output)
                .optGroupId("io.djltp")
                .optArtifactId(artifact)
                .optDevice(Device.cpu());
    }

    private static Criteria.Builder<String, Classifications> lemmatiser() {
        return criteria("lemma-en", String.class, Classifications.class);
    }

    @Test
    public void djlListsTheModel() {
        List<MRL> models = ModelZoo.listModels().get(Application.NLP.TEXT_CLASSIFICATION);
        assertTrue(models.stream().anyMatch(mrl -> mrl.getArtifactId().equals("lemma-en")));
        assertTrue(ModelZoo.hasModelZoo("io.djltp"));
    }

    /** By its application, and nearly all words of the training. */
    @Test(timeOut = 60_000)
    public void theLemmatiserKnowsItsWords() throws Exception {
        Map<String, String> words = LemmatiserTraining.words();
        Criteria<String, Classifications> criteria =
                Criteria.builder()
                        .setTypes(String.class, Classifications.class)
                        .optApplication(Application.NLP.TEXT_CLASSIFICATION)
                        .optGroupId("io.djltp")
                        .build();
        try (ZooModel<String, Classifications> model = criteria.loadModel();
                Predictor<String, Classifications> predictor = model.newPredictor()) {
            assertEquals(
                    best(predictor.batchPredict(WORDS.subList(0, 6))),
                    List.of("go", "mouse", "good", "child", "study", "run"));
            List<String> lemmas = best(predictor.batchPredict(new ArrayList<>(words.keySet())));
            int right = 0;
            int i = 0;
            for (String lemma : words.values()) {
                right += lemma.equals(lemmas.get(i++)) ? 1 : 0;
            }
            assertTrue(right >= 0.999 * words.size(), right + " of " + words.size());
        }
    }

    private static List<String> best(List<Classifications> answers) {
        return answers.stream().map(each -> each.best().getClassName()).toList();
    }

    @DataProvider
    public static Object[][] degrees() {
        return new Object[][] {{1}, {2}, {3}, {"max"}};
    }

    /** Also of no words. */
    @Test(dataProvider = "degrees", timeOut = 60_000)
    public void theOutputsAreThoseOfOneRank(Object degree) throws Exception {
        try (ZooModel<String, Classifications> one = lemmatiser().build().loadModel();
                ZooModel<String, Classifications> several =
                        lemmatiser()
                                .optArgument("tensor_parallel_degree", degree)
                                .build()
                                .loadModel();
                Predictor<String, Classifications> predictor = several.newPredictor()) {
            assertFalse(one.getBlock() instanceof RankedNetwork);
            assertTrue(predictor.batchPredict(List.of()).isEmpty());
            List<Classifications> expected = one.newPredictor().batchPredict(WORDS);
            List<Classifications> actual = predictor.batchPredict(WORDS);
            for (int i = 0; i < WORDS.size(); i++) {
                assertEquals(
                        actual.get(i).best().getClassName(), expected.get(i).best().getClassName());
                for (Classifications.Classification each :
                        expected.get(i).<Classifications.Classification>topK(5)) {
                    assertEquals(
                            actual.get(i).get(each.getClassName()).getProbability(),
                            each.getProbability(),
                            1e-5);
                }
            }
        }
    }

    @Test(timeOut = 60_000)
    public void anOptionSaysTheDegreeTooAndAnArgumentGoesBefore() throws Exception {
        Criteria.Builder<String, Classifications> three =
                lemmatiser().optOption("tensor_parallel_degree", "3");
        try (ZooModel<String, Classifications> model = three.build().loadModel()) {
            RankedNetwork network = (RankedNetwork) model.getBlock();
            assertEquals(network.getRanks(), 3);
            // 681 classes of 32 weights and a bias, and the table that all have, of 2 bytes
            assertEquals(network.getBytesRead(), 2 * 681 * 33 + 2 * 4096 * 32);
        }
        three.optArgument("tensor_parallel_degree", 2);
        try (ZooModel<String, Classifications> model = three.build().loadModel()) {
            assertEquals(((RankedNetwork) model.getBlock()).getRanks(), 2);
        }
    }

    @Test(timeOut = 60_000)
    public void logitsCanBeHadAsArrays() throws Exception {
        try (ZooModel<NDList, NDList> model =
                        criteria("lemma-en", NDList.class, NDList.class)
                                .optArgument("tensor_parallel_degree", 2)
                                .build()
                                .loadModel();
                NDManager manager = NDManager.newBaseManager();
                Predictor<NDList, NDList> predictor = model.newPredictor()) {
            NDList rows = new NDList(manager.create(new int[][] {new int[64], new int[64]}));
            assertEquals(predictor.predict(rows).head().getShape(), new Shape(2, 681));
        }
    }

    @Test(timeOut = 60_000)
    public void whatIsMissingOrNoneIsNamed() throws Exception {
        expectThrows(
                ModelNotFoundException.class,
                criteria("lemma-en", byte[].class, float[].class).build()::loadModel);
        for (String number : List.of("-1", "0")) {
            throwsArgument(lemmatiser().optArgument("topk", number).build()::loadModel, number);
        }
    }

    /** {@code ModelInfo.initialize} and {@code ModelInfo.load}. */
    private ZooModel<Input, Output> load(String degree) throws Exception {
        Properties properties = ModelFolder.properties(folder);
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

    @Test(timeOut = 60_000)
    public void workersAnswerAtOnceAndTheModelIsLoadedAgain() throws Exception {
        Path file = folder.resolve("serving.properties");
        String properties = Files.readString(file);
        for (String degree : new String[] {null, "2", "3"}) {
            if (degree != null) {
                Files.writeString(
                        file, properties + "option.tensor_parallel_degree=" + degree + "\n");
            }
            for (int time = 0; time < 2; time++) {
                try (ZooModel<Input, Output> model = load(degree)) {
                    String ranks =
                            model.getBlock() instanceof RankedNetwork network
                                    ? "" + network.getRanks()
                                    : null;
                    assertEquals(ranks, degree);
                    serve(model);
                    assertEquals(model.getModelPath(), folder);
                }
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
