package io.djltp.llm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import com.google.gson.JsonObject;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.TestFolder;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;

/** What small weights cost a trained model on texts that it has not seen, beside llama.cpp. */
public class WeightLossTest {

    private static final int IDS = 48;
    private static final int LENGTH = 24;

    /**
     * 8 bits lose no more than llama.cpp's, and 4 bits little more, however inputs are cut: their
     * probabilities are as near to those of float32, and their loss differs by chance at most.
     */
    @Test(timeOut = 240_000)
    public void testLossOfSmallWeights() throws Exception {
        Path folder = TestFolder.create();
        Path trained = train(folder, 3);
        int[][] texts = texts(99, 60);
        double[][] exact = ours(trained, WeightType.FLOAT32, 1, texts);
        double loss = Arrays.stream(losses(exact, texts)).average().orElseThrow();
        // half of the way from a guess to what the noise allows
        Assert.assertTrue(loss < (Math.log(IDS) + Math.log(4)) / 2, "a loss of " + loss);
        Path file = folder.resolve("q8.gguf");
        Gguf.write(trained, file, Gguf.Type.Q8_0);
        double[][] theirs = theirs(file, texts);
        double near = divergence(exact, theirs);
        for (int ranks : new int[] {1, 3}) {
            double[][] eight = ours(trained, WeightType.INT8, ranks, texts);
            double[] more = difference(eight, theirs, texts);
            double divergence = divergence(exact, eight);
            String all = "%s ranks: %s, %s and %s".formatted(ranks, more[0], divergence, near);
            Assert.assertTrue(divergence < near, all);
            Assert.assertTrue(more[0] < 2 * more[1], all + ", error " + more[1]);
            double[][] four = ours(trained, WeightType.INT4, ranks, texts);
            Assert.assertTrue(Math.abs(difference(four, exact, texts)[0]) < 0.1, all);
        }
    }

    /** Returns texts in which an id follows from the one before, but for one of four. */
    static int[][] texts(long seed, int count) {
        Random random = new Random(seed);
        int[][] texts = new int[count][LENGTH];
        for (int[] text : texts) {
            text[0] = random.nextInt(IDS);
            for (int i = 1; i < LENGTH; i++) {
                text[i] = (7 * text[i - 1] + random.nextInt(4)) % IDS;
            }
        }
        return texts;
    }

    static Path train(Path folder, int seed) throws Exception {
        JsonObject config =
                RandomFolder.config(
                        "llama",
                        "'vocab_size': 48, 'hidden_size': 64, 'num_attention_heads': 4,"
                                + " 'num_key_value_heads': 2, 'head_dim': 32,"
                                + " 'intermediate_size': 96, 'torch_dtype': 'float32'");
        RandomFolder.write(folder.resolve("random"), config, seed);
        DefaultTrainingConfig how =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                        .optOptimizer(
                                Optimizer.adam()
                                        .optLearningRateTracker(Tracker.fixed(3e-3f))
                                        .build());
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                LanguageModel model =
                        LanguageModel.builder(folder.resolve("random"))
                                .optShardedLogits(true)
                                .load();
                ParallelTrainer trainer =
                        new ParallelTrainer(model.getModel(), how, ParallelConfig.tensor(1))) {
            NDArray ids =
                    manager.create(
                                    Arrays.stream(texts(seed, 512))
                                            .flatMapToInt(Arrays::stream)
                                            .toArray())
                            .reshape(512, LENGTH)
                            .toType(DataType.INT64, false);
            trainer.initialize(new Shape(16, LENGTH - 1));
            ArrayDataset data =
                    new ArrayDataset.Builder()
                            .setData(ids.get(":, :-1"))
                            .optLabels(ids.get(":, 1:"))
                            .setSampling(16, false)
                            .build();
            EasyTrain.fit(trainer, 8, data, null);
            Path trained = folder.resolve("trained");
            model.save(trained, DataType.FLOAT32);
            return trained;
        }
    }

    /** Returns the logarithms of the probabilities after each token but the last of each text. */
    static double[][] ours(Path folder, WeightType type, int ranks, int[][] texts)
            throws Exception {
        List<double[]> all = new ArrayList<>();
        try (Generator generator =
                Generator.builder()
                        .setPath(folder)
                        .optWeights(type)
                        .optConfig(ParallelConfig.tensor(ranks))
                        .build()) {
            for (int[] text : texts) {
                for (int i = 1; i < text.length; i++) {
                    float[] logits = generator.getLogits(Arrays.copyOf(text, i));
                    double[] row = new double[logits.length];
                    Arrays.setAll(row, j -> logits[j]);
                    all.add(logarithms(row));
                }
            }
        }
        return all.toArray(double[][]::new);
    }

    static double[][] theirs(Path file, int[][] texts) throws Exception {
        List<double[]> all = new ArrayList<>();
        int length = texts[0].length;
        try (LlamaCpp peer = new LlamaCpp(file, length, false, false)) {
            for (int[] text : texts) {
                peer.clear();
                peer.append(true, Arrays.copyOf(text, length - 1));
                for (int i = 0; i + 1 < length; i++) {
                    all.add(logarithms(peer.output(i)));
                }
            }
        }
        return all.toArray(double[][]::new);
    }

    private static double[] logarithms(double[] logits) {
        double most = Arrays.stream(logits).max().orElseThrow();
        double sum = Arrays.stream(logits).map(each -> Math.exp(each - most)).sum();
        return Arrays.stream(logits).map(each -> each - most - Math.log(sum)).toArray();
    }

    /** Returns the loss of each token after the first of a text. */
    static double[] losses(double[][] logarithms, int[][] texts) {
        int each = texts[0].length - 1;
        return IntStream.range(0, logarithms.length)
                .mapToDouble(i -> -logarithms[i][texts[i / each][1 + i % each]])
                .toArray();
    }

    /** Returns the mean of the differences of two losses, and its standard error. */
    static double[] difference(double[][] some, double[][] others, int[][] texts) {
        double[] one = losses(some, texts);
        double[] other = losses(others, texts);
        int count = one.length;
        double mean = IntStream.range(0, count).mapToDouble(i -> one[i] - other[i]).sum() / count;
        double squares =
                IntStream.range(0, count)
                        .mapToDouble(i -> Math.pow(one[i] - other[i] - mean, 2))
                        .sum();
        return new double[] {mean, Math.sqrt(squares / count / (count - 1))};
    }

    /** Returns the mean divergence of Kullback and Leibler. */
    static double divergence(double[][] exact, double[][] others) {
        double sum = 0;
        for (int i = 0; i < exact.length; i++) {
            for (int id = 0; id < exact[i].length; id++) {
                sum += Math.exp(exact[i][id]) * (exact[i][id] - others[i][id]);
            }
        }
        return sum / exact.length;
    }
}
