package io.djltp.llm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;

import com.google.gson.JsonObject;

import io.djltp.rank.ParallelConfig;
import io.djltp.testing.TestFolder;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;

/** Logits of random models, against llama.cpp with float32 weights and cache. */
public class LlamaCppTest {

    private static final double TOLERANCE = 1e-5; // of the largest
    private static final double GELU = 2e-3; // llama.cpp takes it from a table of float16
    private static final int LENGTH = 39;

    private final Path folder = TestFolder.create();

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

    /** Returns the logits after each token, or the features of each token of an encoder. */
    private static float[] outputs(LanguageModel model, int[] ids) throws Exception {
        if (model.getConfig().isEncoder()) {
            model.readWhole();
            try (NDManager manager = model.getModel().getNDManager().newSubManager()) {
                NDArray input = manager.create(ids).toType(DataType.INT64, false).expandDims(0);
                return RandomFolder.outputs(model, input).toFloatArray();
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
