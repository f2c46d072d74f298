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
import ai.djl.util.Utils;

import com.google.gson.JsonObject;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Random;

/** What small weights cost a trained model on texts that it has not seen, beside llama.cpp. */
public class WeightLossTest {

    private static final int IDS = 48;
    private static final int LENGTH = 24;

    /** 8 bits lose as little as llama.cpp's, and 4 bits little more, however inputs are cut. */
    @Test(timeOut = 240_000)
    public void testLossOfSmallWeights() throws Exception {
        Path folder = Files.createTempDirectory("loss");
        try {
            Path trained = train(folder);
            int[][] texts = texts(99, 20);
            double exact = ours(trained, WeightType.FLOAT32, 1, texts);
            // half of the way from a guess to what the noise allows
            Assert.assertTrue(exact < (Math.log(IDS) + Math.log(4)) / 2, "a loss of " + exact);
            Path file = folder.resolve("q8.gguf");
            Gguf.write(trained, file, Gguf.Type.Q8_0);
            double theirs = theirs(file, texts);
            for (int ranks : new int[] {1, 3}) {
                double eight = ours(trained, WeightType.INT8, ranks, texts);
                double four = ours(trained, WeightType.INT4, ranks, texts);
                String all = exact + ", int8 " + eight + ", Q8_0 " + theirs + ", int4 " + four;
                Assert.assertTrue(Math.abs(eight - exact) < 0.01, all);
                Assert.assertTrue(eight < theirs + 0.01, all);
                Assert.assertTrue(Math.abs(four - exact) < 0.1, all);
            }
        } finally {
            Utils.deleteQuietly(folder);
        }
    }

    /** Returns texts in which an id follows from the one before, but for one of four. */
    private static int[][] texts(long seed, int count) {
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

    private static Path train(Path folder) throws Exception {
        JsonObject config =
                RandomFolder.config(
                        "llama",
                        "'vocab_size': 48, 'hidden_size': 64, 'num_attention_heads': 4,"
                                + " 'num_key_value_heads': 2, 'head_dim': 32,"
                                + " 'intermediate_size': 96, 'torch_dtype': 'float32'");
        RandomFolder.write(folder.resolve("random"), config, 3);
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
                                    Arrays.stream(texts(1, 512))
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

    /** Returns the mean loss of the tokens after the first of each text. */
    static double ours(Path folder, WeightType type, int ranks, int[][] texts) throws Exception {
        int length = texts[0].length;
        double sum = 0;
        try (Generator generator =
                Generator.builder()
                        .setPath(folder)
                        .optWeights(type)
                        .optConfig(ParallelConfig.tensor(ranks))
                        .build()) {
            for (int[] text : texts) {
                for (int i = 1; i < length; i++) {
                    float[] logits = generator.getLogits(Arrays.copyOf(text, i));
                    double[] row = new double[logits.length];
                    Arrays.setAll(row, j -> logits[j]);
                    sum += loss(row, text[i]);
                }
            }
        }
        return sum / texts.length / (length - 1);
    }

    static double theirs(Path file, int[][] texts) throws Exception {
        int length = texts[0].length;
        double sum = 0;
        try (LlamaCpp peer = new LlamaCpp(file, length, false, false)) {
            for (int[] text : texts) {
                peer.clear();
                peer.append(true, Arrays.copyOf(text, length - 1));
                for (int i = 0; i + 1 < length; i++) {
                    sum += loss(peer.output(i), text[i + 1]);
                }
            }
        }
        return sum / texts.length / (length - 1);
    }

    private static double loss(double[] logits, int id) {
        double most = Arrays.stream(logits).max().orElseThrow();
        double sum = Arrays.stream(logits).map(each -> Math.exp(each - most)).sum();
        return Math.log(sum) + most - logits[id];
    }
}
