package io.djltp.examples.embed;

import static org.testng.Assert.assertEquals;

import ai.djl.translate.TranslateException;
import ai.onnxruntime.OrtException;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveCounts;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.ParallelConfig;
import io.djltp.zoo.minilm.WordPieces;

import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/** The pretrained model on ranks computes what ONNX Runtime computes of the same file. */
public class MiniLmTest {

    private static final int BATCH = 10;
    private static final int LAYERS = 6;
    private static final double TOLERANCE = 1e-5;

    private final List<WordPieces.Batch> batches = new ArrayList<>();
    private final List<float[][]> expected = new ArrayList<>();

    @BeforeClass
    public void computeByOnnxRuntime() throws IOException, OrtException {
        List<String> sentences = Sentences.read();
        assertEquals(sentences.size(), 100);
        int threads = Runtime.getRuntime().availableProcessors();
        try (WordPieces pieces = WordPieces.load();
                OnnxReference reference = new OnnxReference(threads)) {
            for (int i = 0; i < sentences.size(); i += BATCH) {
                WordPieces.Batch batch = pieces.cut(sentences.subList(i, i + BATCH));
                batches.add(batch);
                expected.add(reference.embed(batch));
            }
        }
    }

    @AfterClass
    public void forget() {
        batches.clear();
        expected.clear();
    }

    @DataProvider
    public Object[][] ranks() {
        return new Object[][] {{1}, {2}, {3}, {4}, {5}};
    }

    @Test(dataProvider = "ranks", timeOut = 120_000)
    public void isTheModelOfOnnxRuntime(int ranks) throws IOException, TranslateException {
        ParallelConfig config =
                ParallelConfig.builder().setMode(ParallelMode.TENSOR).setRanks(ranks).build();
        try (SentenceEmbedder embedder = new SentenceEmbedder(config)) {
            for (int i = 0; i < batches.size(); i++) {
                CollectiveCounts before = embedder.getCollectiveCounts();
                float[][] actual = embedder.embed(batches.get(i));
                CollectiveCounts counts = embedder.getCollectiveCounts().minus(before);
                int reduces = ranks == 1 ? 0 : 1 + 2 * LAYERS;
                assertEquals(counts.get(Collective.ALL_REDUCE), reduces);
                assertEquals(counts.total(), reduces, counts.toString());
                assertEquals(actual.length, BATCH);
                for (int k = 0; k < BATCH; k++) {
                    assertEquals(
                            EmbeddingRun.largestDifference(actual[k], expected.get(i)[k]),
                            0,
                            TOLERANCE);
                }
            }
        }
    }
}
