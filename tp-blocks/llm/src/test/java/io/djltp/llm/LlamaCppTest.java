package io.djltp.llm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.ParameterStore;
import ai.djl.training.TrainingConfig;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.util.Utils;

import com.google.gson.JsonObject;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;

/** Logits and greedy tokens of random models, against llama.cpp with float32 weights and cache. */
public class LlamaCppTest {

    private static final double TOLERANCE = 1e-5; // of the largest
    private static final double GELU = 2e-3; // llama.cpp takes it from a table of float16
    private static final int LENGTH = 39;

    private Path folder;

    @BeforeClass
    public void makeFolder() throws Exception {
        folder = Files.createTempDirectory("gguf");
    }

    @AfterClass(alwaysRun = true)
    public void deleteFolder() {
        Utils.deleteQuietly(folder);
    }

    @DataProvider
    public static Object[][] models() {
        String longer = "'max_position_embeddings': 8, 'rope_scaling': ";
        String of8 = "'factor': 8.0, 'original_max_position_embeddings': 8";
        String llama3 = ", 'low_freq_factor': 1.0, 'high_freq_factor': 4.0";
        String qwen2 = "'hidden_size': 36, 'max_position_embeddings': ";
        return new Object[][] {
            {"llama", "'max_position_embeddings': 64, 'tie_word_embeddings': true"},
            {"llama", "'max_position_embeddings': 64, 'num_key_value_heads': 1"},
            {
                "llama",
                "'hidden_size': 36, 'max_position_embeddings': 64, 'attention_bias': true,"
                        + " 'mlp_bias': true, 'rope_theta': 500.0"
            },
            {"llama", longer + "{'type': 'linear', 'factor': 6.0}"},
            {
                "llama",
                "'max_position_embeddings': 64, 'rope_scaling': {'rope_type': 'llama3', "
                        + of8
                        + llama3
                        + "}"
            },
            {"llama", longer + "{'rope_type': 'yarn', " + of8 + "}"},
            {"mistral", "'max_position_embeddings': 64, 'sliding_window': null"},
            {"mistral", "'max_position_embeddings': 64, 'sliding_window': 5"},
            {"qwen2", qwen2 + "64, 'tie_word_embeddings': true"},
            {"qwen2", qwen2 + "8, 'rope_scaling': {'type': 'yarn', " + of8 + "}"},
            {"gpt2", "'n_positions': 64"},
            {"gpt2", "'n_positions': 64, 'tie_word_embeddings': false, 'n_inner': 33"},
            {
                "bert",
                "'hidden_size': 36, 'max_position_embeddings': 64, 'num_key_value_heads': null,"
                        + " 'head_dim': null, 'rms_norm_eps': null"
            },
        };
    }

    @Test(dataProvider = "models", timeOut = 60_000)
    public void testOutputIsThat(String type, String fields) throws Exception {
        JsonObject config = RandomFolder.config(type, fields);
        RandomFolder.write(folder, config, 5);
        Path file = folder.resolve("model.gguf");
        Gguf.write(folder, file, Gguf.Type.F32);
        int[] ids = new Random(9).ints(LENGTH, 0, 53).toArray();
        double tolerance = type.equals("gpt2") || type.equals("bert") ? GELU : TOLERANCE;
        try (LanguageModel model = LanguageModel.load(folder);
                LlamaCpp other = new LlamaCpp(file, LENGTH, false, model.getConfig().isEncoder())) {
            int window = model.getConfig().getSlidingWindow(0);
            if (window == 0) {
                other.append(true, ids);
            }
            List<double[]> expected = new ArrayList<>();
            for (int i = 0; i < LENGTH; i++) {
                if (window > 0) {
                    other.keepLast(window - 1);
                    other.append(false, ids[i]);
                }
                expected.add(other.output(window > 0 ? -1 : i));
            }
            double[] flat = expected.stream().flatMapToDouble(Arrays::stream).toArray();
            Expected.check(outputs(model, ids), flat, tolerance, "llama.cpp, " + config);
        }
    }

    /** Trains a model with a tokenizer, as {@code tp lm} writes it, until it can say a sentence. */
    @Test(timeOut = 120_000)
    public void testATrainedModelWritesTheSame() throws Exception {
        Path random = folder.resolve("random");
        Path trained = folder.resolve("trained");
        String fields =
                "'vocab_size': 263, 'hidden_size': 32, 'intermediate_size': 64,"
                        + " 'max_position_embeddings': 400, 'tie_word_embeddings': true";
        RandomFolder.write(random, RandomFolder.config("llama", fields), 3);
        ByteTokenizer.write(random);
        String said = " hello, she said; ";
        try (LanguageModel model = LanguageModel.builder(random).optShardedLogits(true).load()) {
            long[] ids = model.getTokenizer().encode(said.repeat(40), false, false).getIds();
            train(model, Arrays.copyOf(ids, 4 * 65));
            model.save(trained, DataType.FLOAT32);
        }
        Path file = folder.resolve("trained.gguf");
        Gguf.write(trained, file, Gguf.Type.F32);
        GenerationOptions options = GenerationOptions.builder().optMaxTokens(300).build();
        try (LlamaCpp other = new LlamaCpp(file, 400, false, false);
                Generator generator =
                        Generator.builder()
                                .setPath(trained)
                                .optConfig(ParallelConfig.tensor(3))
                                .build()) {
            String prompt = said + " hell";
            int[] ids = other.tokenize(prompt);
            Assert.assertEquals(ids, generator.encode(prompt));
            Generation text = generator.generate(prompt, options);
            text.finish();
            Assert.assertTrue(text.getText(0).contains(said), text.getText(0));
            Assert.assertEquals(text.getIds(0), other.greedy(ids, 300));
        }
    }

    private static void train(LanguageModel model, long[] ids) throws Exception {
        TrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                        .optOptimizer(
                                Optimizer.adam()
                                        .optLearningRateTracker(Tracker.fixed(0.01f))
                                        .build());
        try (ParallelTrainer trainer =
                        new ParallelTrainer(model.getModel(), config, ParallelConfig.tensor(2));
                NDManager manager = NDManager.newBaseManager()) {
            trainer.initialize(new Shape(4, 64));
            NDArray rows = manager.create(ids, new Shape(4, 65));
            ArrayDataset data =
                    new ArrayDataset.Builder()
                            .setData(rows.get(":, :-1"))
                            .optLabels(rows.get(":, 1:"))
                            .setSampling(4, false)
                            .build();
            EasyTrain.fit(trainer, 40, data, null);
        }
    }

    /** Returns the logits after each token, or the features of each token of an encoder. */
    private static float[] outputs(LanguageModel model, int[] ids) throws Exception {
        if (model.getConfig().isEncoder()) {
            model.readWhole();
            try (NDManager manager = model.getModel().getNDManager().newSubManager()) {
                NDArray input = manager.create(ids).toType(DataType.INT64, false).expandDims(0);
                ParameterStore store = new ParameterStore(manager, false);
                Block network = model.getModel().getBlock();
                return network.forward(store, new NDList(input), false).head().toFloatArray();
            }
        }
        try (Generator generator =
                Generator.builder().setModel(model).optConfig(ParallelConfig.tensor(2)).build()) {
            int size = model.getConfig().getVocabularySize();
            float[] all = new float[ids.length * size];
            for (int i = 0; i < ids.length; i++) {
                float[] logits = generator.getLogits(Arrays.copyOf(ids, i + 1));
                System.arraycopy(logits, 0, all, i * size, size);
            }
            return all;
        }
    }
}
