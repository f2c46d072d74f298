package io.djltp.llm;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.rank.ParallelConfig;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.IntStream;

/** The vectors of an embedder are those of the network of blocks, on any number of ranks. */
public class EmbedderTest {

    private static final int WIDTH = 20;

    private final Path folder = TestFolder.create();
    private List<String> texts;
    private List<float[]> expected;

    @BeforeClass
    public void write() throws Exception {
        RandomFolder.writeEncoder(folder);
        texts = new ArrayList<>(); // of 1 to 40 tokens, and cut; more than one pass
        for (int i = 0; i < 90; i++) {
            texts.add("some text of a number".substring(0, 1 + i % 20).repeat(1 + i % 3));
        }
        expected = new ArrayList<>();
        try (LanguageModel model = LanguageModel.load(folder);
                NDManager manager = NDManager.newBaseManager()) {
            model.readWhole();
            Pooling pooling = Pooling.read(folder, 40, null);
            for (String text : texts) {
                long[] ids = model.getTokenizer().encode(text).getIds();
                ids = Arrays.copyOf(ids, Math.min(ids.length, 40));
                NDArray input = manager.create(ids, new Shape(1, ids.length));
                NDArray features = RandomFolder.outputs(model, input);
                NDArray vector = pooling.pool(features, manager.ones(input.getShape()));
                expected.add(vector.div(vector.norm()).toFloatArray());
            }
        }
    }

    @DataProvider
    public static Object[][] ranks() {
        return new Object[][] {{1}, {2}, {3}, {4}};
    }

    @Test(dataProvider = "ranks", timeOut = 60_000)
    public void testVectors(int ranks) throws Exception {
        try (Embedder embedder = Embedder.load(folder, ParallelConfig.tensor(ranks))) {
            check(embedder.embed(texts), 0);
            check(embedder.embed(texts.subList(5, 6)), 5);
            Assert.assertEquals(embedder.embed(List.of()), List.of());
        }
    }

    private void check(List<float[]> vectors, int from) {
        for (int i = 0; i < vectors.size(); i++) {
            for (int j = 0; j < WIDTH; j++) {
                Assert.assertEquals(
                        vectors.get(i)[j], expected.get(from + i)[j], 1e-5, texts.get(from + i));
            }
        }
    }

    @Test(timeOut = 60_000)
    public void testThreads() throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(4);
        Embedder embedder = Embedder.load(folder, ParallelConfig.tensor(2));
        try (embedder) {
            List<Future<List<float[]>>> all =
                    IntStream.range(0, 80)
                            .mapToObj(
                                    i ->
                                            threads.submit(
                                                    () -> embedder.embed(texts.subList(i, i + 3))))
                            .toList();
            for (int i = 0; i < all.size(); i++) {
                check(all.get(i).get(), i);
            }
        } finally {
            threads.shutdownNow();
        }
        Assert.assertThrows(IllegalStateException.class, () -> embedder.embed(texts));
    }

    /** A text has the vector that its prompt and it have without one. */
    @Test(timeOut = 60_000)
    public void testPrompt() throws Exception {
        Path own = TestFolder.create();
        RandomFolder.writeEncoder(own);
        Files.writeString(
                own.resolve("config_sentence_transformers.json"),
                "{\"prompts\": {\"query\": \"find: \", \"passage\": \"\"}}");
        try (Embedder plain = Embedder.load(own, ParallelConfig.tensor(1));
                Embedder asking = Embedder.load(own, ParallelConfig.tensor(1), "query")) {
            Assert.assertEquals(
                    asking.embed(List.of("a b")).get(0), plain.embed(List.of("find: a b")).get(0));
        }
    }

    @Test(timeOut = 60_000)
    public void testNoEncoder() throws Exception {
        Path own = TestFolder.create();
        RandomFolder.write(own, RandomFolder.config("llama", ""), 1);
        Files.delete(own.resolve("model.safetensors"));
        Refusals.expect(
                MalformedModelException.class,
                () -> Embedder.load(own, ParallelConfig.tensor(1)),
                "is no encoder");
    }

    @Test(timeOut = 60_000)
    public void testTooManyRanks() {
        Refusals.throwsArgument(
                () -> Embedder.load(folder, ParallelConfig.tensor(6)), "5 query heads");
    }
}
