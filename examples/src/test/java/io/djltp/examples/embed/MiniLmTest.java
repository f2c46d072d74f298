package io.djltp.examples.embed;

import static org.testng.Assert.assertEquals;

import ai.djl.inference.Predictor;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import ai.onnxruntime.OrtException;

import io.djltp.llm.Embedder;
import io.djltp.llm.LanguageModel;
import io.djltp.llm.zoo.MiniLmFolder;
import io.djltp.rank.ParallelConfig;

import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;

/**
 * The pretrained model of a folder computes, on ranks, what ONNX Runtime computes of the same file.
 */
public class MiniLmTest {

    private static final int BATCH = 14;
    private static final int LAYERS = 6;
    private static final double TOLERANCE = 1e-5;

    private final List<List<String>> batches = new ArrayList<>();
    private final List<float[][]> expected = new ArrayList<>();

    @BeforeClass
    public void computeByOnnxRuntime() throws IOException, OrtException {
        List<List<String>> groups = groups(Sentences.read());
        assertEquals(groups.stream().mapToInt(List::size).sum(), 102);
        int threads = Runtime.getRuntime().availableProcessors();
        try (OnnxReference reference = new OnnxReference(threads)) {
            for (List<String> group : groups) {
                batches.add(group);
                expected.add(reference.embed(group));
            }
        }
    }

    /**
     * Returns the shortest and the longest sentence, which is mostly padding, and the others by
     * their lengths: as they come, three of four word pieces of all batches are padding.
     */
    private static List<List<String>> groups(List<String> sentences) {
        List<String> sorted = new ArrayList<>(sentences);
        sorted.sort(Comparator.comparingInt(String::length));
        int last = sorted.size() - 1;
        List<List<String>> groups = new ArrayList<>();
        groups.add(List.of(sorted.get(0), sorted.get(last)));
        groups.add(List.of("word ".repeat(254), "word ".repeat(1000))); // 256 tokens, and cut
        for (int i = 1; i < last; i += BATCH) {
            groups.add(sorted.subList(i, Math.min(i + BATCH, last)));
        }
        return groups;
    }

    @AfterClass
    public void forget() {
        batches.clear();
        expected.clear();
    }

    @DataProvider
    public Object[][] ranks() {
        return new Object[][] {{2}, {5}};
    }

    @DataProvider
    public Object[][] otherRanks() {
        return new Object[][] {{1}, {3}, {4}};
    }

    @Test(groups = "sweep", dataProvider = "otherRanks", timeOut = 120_000)
    public void isTheModelOfOnnxRuntimeOnOtherRanks(int ranks) throws Exception {
        isTheModelOfOnnxRuntime(ranks);
    }

    @Test(dataProvider = "ranks", timeOut = 120_000)
    public void isTheModelOfOnnxRuntime(int ranks) throws Exception {
        try (Embedder embedder = Embedder.load(MiniLmFolder.get(), ParallelConfig.tensor(ranks))) {
            for (int i = 0; i < batches.size(); i++) {
                List<float[]> actual = embedder.embed(batches.get(i));
                assertEquals(actual.size(), expected.get(i).length);
                for (int k = 0; k < actual.size(); k++) {
                    assertEquals(
                            OnnxReference.largestDifference(actual.get(k), expected.get(i)[k]),
                            0,
                            TOLERANCE);
                }
            }
            long before = embedder.getAllReduces();
            embedder.embed(List.of("one text"));
            assertEquals(embedder.getAllReduces() - before, ranks == 1 ? 0 : 2 * LAYERS);
        }
    }

    /** The word pieces are those of bert-base-uncased, as in Hugging Face's documentation. */
    @Test(timeOut = 60_000)
    public void theWordPiecesAreThoseOfBert() throws Exception {
        try (LanguageModel model = LanguageModel.load(MiniLmFolder.get())) {
            long[] ids = model.getTokenizer().encode("Hello, World!").getIds();
            assertEquals(ids, new long[] {101, 7592, 1010, 2088, 999, 102});
        }
    }

    /** DJL finds the same model by its name. */
    @Test(timeOut = 120_000)
    public void isInTheZoo() throws Exception {
        Criteria<String, float[]> criteria =
                Criteria.builder()
                        .setTypes(String.class, float[].class)
                        .optGroupId("io.djltp.llm")
                        .optArtifactId("all-MiniLM-L6-v2")
                        .optArgument("tensor_parallel_degree", 2)
                        .build();
        try (ZooModel<String, float[]> model = criteria.loadModel();
                Predictor<String, float[]> predictor = model.newPredictor()) {
            List<float[]> actual = predictor.batchPredict(batches.get(0));
            for (int i = 0; i < actual.size(); i++) {
                float[] vector = expected.get(0)[i];
                assertEquals(OnnxReference.largestDifference(actual.get(i), vector), 0, TOLERANCE);
            }
        }
    }
}
