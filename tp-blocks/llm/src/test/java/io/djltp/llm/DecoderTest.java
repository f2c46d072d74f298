package io.djltp.llm;

import io.djltp.rank.ParallelConfig;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;

/**
 * Logits of the decoder, by steps of any tokens, for random models of all architectures on 1 to 4
 * ranks against PyTorch's float64.
 */
public class DecoderTest {

    private static final int LENGTH = 19;

    private Map<String, double[]> expected;
    private final Path folder = TestFolder.create();
    private int[][] ids;

    @BeforeClass
    public void compute() throws Exception {
        Random random = new Random(11);
        ids = new int[2][];
        Arrays.setAll(ids, i -> random.ints(LENGTH, 0, 53).toArray());
        expected = Expected.compute(folder, ArchitecturesTest.MODELS, Map.of("ids", ids));
    }

    @DataProvider
    public static Object[][] models() {
        return ArchitecturesTest.models();
    }

    @Test(dataProvider = "models", timeOut = 120_000)
    public void logitsEqualPyTorch(String name) throws Exception {
        check(name, WeightType.FLOAT32, 1e-5);
    }

    /** Of other types, as far as their rounding lets them. */
    @Test(timeOut = 120_000)
    public void smallWeightsAreNear() throws Exception {
        for (String name : List.of("llama", "gpt2", "qwen2")) {
            check(name, WeightType.FLOAT16, 1e-2);
            check(name, WeightType.BFLOAT16, 0.15);
            check(name, WeightType.INT8, 0.1);
        }
    }

    private void check(String name, WeightType type, double tolerance) throws Exception {
        Path own = folder.resolve(name);
        ModelConfig config = ModelConfig.read(own);
        for (int ranks = 1; ranks <= 4; ranks++) {
            try (Decoder decoder =
                    new Decoder(
                            config,
                            own,
                            null,
                            type,
                            ParallelConfig.tensor(ranks),
                            new Decoder.Size(2, LENGTH, 9),
                            false)) {
                float[][][] found = new float[2][LENGTH][];
                int[] done = new int[2];
                // rows of one text or both, one or more
                for (int[] counts : new int[][] {{7, 0}, {1, 1}, {0, 9}, {1, 1}, {3, 6}, {7, 2}}) {
                    run(decoder, counts, done, found);
                }
                Assert.assertEquals(done, new int[] {LENGTH, LENGTH});
                compare(name + " " + type + " on " + ranks + " ranks", found, name, tolerance);
            }
        }
    }

    private void run(Decoder decoder, int[] counts, int[] done, float[][][] found) {
        DecoderStep step = new DecoderStep(9);
        List<float[][]> texts = new ArrayList<>();
        List<Integer> rows = new ArrayList<>();
        for (int text = 0; text < 2; text++) {
            for (int i = 0; i < counts[text]; i++) {
                step.add(text, done[text], ids[text][done[text]], LENGTH);
                step.ask(
                        new DecoderStep.Sampling(
                                GenerationOptions.builder().build(), 0, 0, new int[0], true));
                texts.add(found[text]);
                rows.add(done[text]++);
            }
        }
        DecoderStep.Choice[] choices = decoder.choose(step);
        for (int i = 0; i < choices.length; i++) {
            texts.get(i)[rows.get(i)] = choices[i].logits();
        }
    }

    private void compare(String what, float[][][] found, String name, double tolerance) {
        double[] all = expected.get(name);
        float[] flat = new float[all.length];
        int vocabulary = all.length / (2 * LENGTH);
        for (int i = 0; i < flat.length; i++) {
            int row = i / vocabulary;
            flat[i] = found[row / LENGTH][row % LENGTH][i % vocabulary];
        }
        Expected.check(flat, all, tolerance, what);
    }
}
