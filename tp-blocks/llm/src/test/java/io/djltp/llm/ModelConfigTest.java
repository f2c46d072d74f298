package io.djltp.llm;

import ai.djl.MalformedModelException;

import io.djltp.nn.attention.RotaryScaling;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;

/** What a {@code config.json} says, and what it must not say. */
public class ModelConfigTest {

    private static final String LLAMA =
            "'model_type': 'llama', 'vocab_size': 101, 'hidden_size': 20, 'num_hidden_layers': 2,"
                    + " 'num_attention_heads': 5, 'intermediate_size': 33,"
                    + " 'max_position_embeddings': 64";

    private static ModelConfig read(String fields) {
        return ModelConfig.parse("{" + fields + "}");
    }

    @Test
    public void testLlama() {
        ModelConfig config =
                read(
                        LLAMA
                                + ", 'num_key_value_heads': 1, 'head_dim': 6, 'rms_norm_eps': 1e-5,"
                                + " 'torch_dtype': 'bfloat16', 'attention_dropout': 0.0,"
                                + " 'rope_scaling': null, 'tie_word_embeddings': true");
        Assert.assertEquals(config.getVocabularySize(), 101);
        Assert.assertEquals(config.getKeyValueHeads(), 1);
        Assert.assertEquals(config.getHeadDim(), 6);
        Assert.assertEquals(config.getEpsilon(), 1e-5f);
        Assert.assertTrue(config.isTied());
        Assert.assertFalse(config.hasQueryKeyValueBias());
        Assert.assertEquals(read(LLAMA).getKeyValueHeads(), 5);
        Assert.assertEquals(read(LLAMA).getHeadDim(), 4);
    }

    /** As SmolLM2 and Qwen2.5 have them. */
    @Test
    public void testFieldsThatChangeNothing() {
        String fields =
                ", 'is_llama_config': true, 'tokenizer_class': 'X', 'rope_interleaved': false,"
                        + " 'use_mrope': false";
        Assert.assertEquals(read(LLAMA + fields).getHeads(), 5);
    }

    @Test
    public void testRotaryScaling() {
        String yarn = "{'rope_type': 'yarn', 'factor': 4.0, 'rope_theta': 500.0}";
        for (String name : new String[] {"rope_scaling", "rope_parameters"}) {
            ModelConfig config = read(LLAMA + ", '" + name + "': " + yarn);
            Assert.assertEquals(config.getRotary().getScaling(), RotaryScaling.yarn(4, 64));
            Assert.assertEquals(config.getMaxPositions(), 256);
            double[] frequencies = config.getRotary().getFrequencies(4, 1);
            Assert.assertEquals(frequencies.length, 2);
        }
        String plain = ", 'rope_parameters': {'rope_type': 'default', 'rope_theta': 500.0}";
        double[] frequencies = read(LLAMA + plain).getRotary().getFrequencies(4, 1);
        Assert.assertEquals(frequencies[1], Math.pow(500, -0.5));
        Assert.assertNull(read(LLAMA + plain).getRotary().getScaling());
    }

    @Test
    public void testGpt2() {
        ModelConfig config =
                read(
                        "'model_type': 'gpt2', 'vocab_size': 7, 'n_embd': 12, 'n_layer': 1,"
                                + " 'n_head': 3, 'n_positions': 32, 'n_ctx': 32, 'n_inner': null,"
                                + " 'resid_pdrop': 0.1, 'scale_attn_weights': true");
        Assert.assertEquals(config.getHiddenFeatures(), 48);
        Assert.assertTrue(config.isTied() && config.hasMlpBias() && config.hasOutputBias());
        Assert.assertNull(config.getRotary());
        Assert.assertEquals(config.getActivation(), ModelConfig.Activation.GELU_TANH);
    }

    @Test
    public void testSlidingWindows() {
        String window = LLAMA + ", 'num_key_value_heads': 1, 'sliding_window': 16";
        Assert.assertEquals(read(window.replace("llama", "mistral")).getSlidingWindow(1), 16);
        String qwen = window.replace("llama", "qwen2");
        Assert.assertEquals(read(qwen).getSlidingWindow(1), 0);
        qwen += ", 'use_sliding_window': true, 'max_window_layers': 1";
        Assert.assertEquals(read(qwen).getSlidingWindow(0), 0);
        Assert.assertEquals(read(qwen).getSlidingWindow(1), 16);
    }

    /** As the classes of Hugging Face have them. */
    @Test
    public void testAbsentFields() {
        String sizes =
                LLAMA.replace("': 5,", "': 32,").replace("'hidden_size': 20", "'hidden_size': 64");
        ModelConfig mistral = read(sizes.replace("llama", "mistral").replace("s': 64", "s': 5000"));
        Assert.assertEquals(mistral.getKeyValueHeads(), 8);
        Assert.assertEquals(mistral.getSlidingWindow(0), 4096);
        ModelConfig qwen = read(sizes.replace("llama", "qwen3"));
        Assert.assertEquals(qwen.getHeadDim(), 128);
        Assert.assertEquals(qwen.getSlidingWindow(0), 0);
        ModelConfig smollm = read(sizes.replace("llama", "smollm3"));
        Assert.assertEquals(smollm.getKeyValueHeads(), 4);
        Assert.assertEquals(smollm.getRotary().getFrequencies(4, 1)[1], Math.pow(2e6, -0.5));
        Assert.assertTrue(smollm.isTied());
        Assert.assertEquals(read(sizes.replace("llama", "phi3")).getEpsilon(), 1e-5f);
    }

    @DataProvider
    public static Object[][] wrong() {
        return new Object[][] {
            {LLAMA.replace("llama", "mamba"), "model_type is \"mamba\"; known are .*gpt2, llama"},
            {LLAMA.replace("'vocab_size': 101, ", ""), "vocab_size is missing"},
            {LLAMA.replace("101", "'many'"), "vocab_size is \"many\", and must be a number"},
            {LLAMA.replace("101", "1.5"), "vocab_size is 1.5, and must be a whole number"},
            {LLAMA + ", 'num_key_value_heads': 2", "5 is not a multiple of .* 2"},
            {LLAMA.replace("'hidden_size': 20", "'hidden_size': 21"), "5 heads do not divide"},
            {LLAMA + ", 'rope_scaling': {'type': 'su'}", "rope_type is .*su.*; known are"},
            {LLAMA + ", 'rope_scaling': 'yarn'", "rope_scaling is .*, and must be one object"},
            {LLAMA + ", 'head_dim': 5", "a head has 5"},
            {LLAMA + ", 'hidden_act': 'mish'", "hidden_act is \"mish\"; known are .*silu"},
            {LLAMA + ", 'attention_bias': 1", "attention_bias is 1, and must be true or false"},
            {LLAMA + ", 'partial_rotary_factor': 0.5", "is 0.5; implemented is 1"},
            {
                LLAMA
                        + ", 'rope_parameters': {'rope_type': 'default',"
                        + " 'partial_rotary_factor': 0.5}",
                "is 0.5; implemented is 1"
            },
            {
                LLAMA + ", 'rope_parameters': {'rope_type': 'default', 'rope_theta': '500'}",
                "rope_theta is \"500\", and must be a number above 0"
            },
            {LLAMA + ", 'rope_interleaved': true", "is true; implemented is false"},
            {
                LLAMA + ", 'quantization_config': {'bits': 4}",
                "quantization_config is .*, which is not impl"
            },
            {LLAMA + ", 'residual_multiplier': 2", "residual_multiplier is 2, which is not"},
            {LLAMA + ", 'parallel_attn': 2", "the field parallel_attn = 2 of a llama is not"},
            {
                LLAMA.replace("llama", "smollm3")
                        + ", 'num_key_value_heads': 5, 'no_rope_layers': [1]",
                "no_rope_layers must be a list of 2 numbers"
            },
            {
                LLAMA.replace("llama", "smollm3")
                        + ", 'num_key_value_heads': 5, 'no_rope_layers': [1, 'a']",
                "no_rope_layers must be a list of 2 numbers"
            },
            {
                LLAMA.replace("llama", "mistral")
                        + ", 'num_key_value_heads': 5, 'attention_bias': true",
                "attention_bias is true; implemented is false"
            },
            {
                LLAMA.replace("llama", "mistral") + ", 'num_key_value_heads': 5, 'n_embd': 20",
                "the field n_embd = 20 of a mistral is not known"
            },
            {
                LLAMA.replace("llama", "phi3")
                        + ", 'num_key_value_heads': 5, 'layer_types': ['full_attention']",
                "the field layer_types = .* of a phi3 is not known"
            },
            {LLAMA + ", 'rms_norm_eps': 0", "rms_norm_eps is 0, and must be a number above 0"},
        };
    }

    @Test(dataProvider = "wrong")
    public void testRefuses(String fields, String message) {
        String said = Refusals.throwsArgument(() -> read(fields));
        Assert.assertTrue(said.matches("config.json: .*" + message + ".*"), said);
    }

    @Test
    public void testNoJson() throws Exception {
        Path folder = TestFolder.create();
        for (String text : new String[] {"", "[1]", "{\"a\""}) {
            Files.writeString(folder.resolve("config.json"), text);
            Assert.assertThrows(MalformedModelException.class, () -> ModelConfig.read(folder));
            Refusals.throwsArgument(() -> ModelConfig.parse(text));
        }
    }
}
