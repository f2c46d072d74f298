package io.djltp.examples.lm;

import static io.djltp.examples.train.DeviceOptions.positive;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.initializer.NormalInitializer;

import com.google.gson.JsonObject;

import io.djltp.examples.BadInputException;
import io.djltp.internal.torch.LinearProduct;
import io.djltp.llm.ModelConfig;
import io.djltp.torch.Precision;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Option;

/**
 * A small GPT of the parts of Llama: embedding, layers, norm, and as its head the embedding again.
 *
 * <ul>
 *   <li>input: tokens, [batch, context], int64
 *   <li>output: logits, [batch, context, vocabulary], on a rank those of its part of the vocabulary
 * </ul>
 */
public final class LmNetwork {

    private static final float DEVIATION = 0.02f; // of the weights at the beginning, as in GPT-2

    private LmNetwork() {}

    /**
     * Returns the network, not initialized.
     *
     * @param sizes the sizes
     * @param vocabulary the number of tokens of the vocabulary
     * @param cutTokens whether tokens are cut over the ranks between attention and MLPs, from the
     *     embedding to the head
     * @return the network
     */
    public static Block create(LmSizes sizes, int vocabulary, boolean cutTokens) {
        ModelConfig config = ModelConfig.parse(config(sizes, vocabulary).toString());
        Block network = config.newDecoder(cutTokens, sizes.precision);
        network.setInitializer(new NormalInitializer(DEVIATION), Parameter.Type.WEIGHT);
        return network;
    }

    /** Returns the configuration, as Hugging Face has it. */
    static JsonObject config(LmSizes sizes, int vocabulary) {
        JsonObject config = new JsonObject();
        config.addProperty("model_type", "llama");
        config.addProperty("vocab_size", vocabulary);
        config.addProperty("hidden_size", sizes.width);
        config.addProperty("num_hidden_layers", sizes.layers);
        config.addProperty("num_attention_heads", sizes.heads);
        config.addProperty("num_key_value_heads", sizes.keyValueHeads());
        config.addProperty("intermediate_size", sizes.hidden());
        config.addProperty("max_position_embeddings", sizes.context);
        config.addProperty("rms_norm_eps", 1e-5);
        config.addProperty("rope_theta", 10_000.0);
        config.addProperty("hidden_act", "silu");
        config.addProperty("attention_bias", false);
        config.addProperty("mlp_bias", false);
        config.addProperty("tie_word_embeddings", true);
        config.addProperty("torch_dtype", "float32");
        return config;
    }

    /**
     * Returns the shape of a batch.
     *
     * @param batch the number of windows of text
     * @param sizes the sizes
     * @return the shape of their tokens
     */
    public static Shape inputShape(int batch, LmSizes sizes) {
        return new Shape(batch, sizes.context);
    }

    /** The sizes of the model, as options. */
    public static final class LmSizes {

        private static final int MULTIPLE = 8; // of the hidden features

        @Option(
                names = "--layers",
                defaultValue = "4",
                description = "Layers of the transformer (${DEFAULT-VALUE}).")
        int layers;

        @Option(
                names = "--width",
                defaultValue = "128",
                description = "Features of a token (${DEFAULT-VALUE}).")
        int width;

        @Option(
                names = "--heads",
                defaultValue = "8",
                description =
                        "Query heads of a layer, each of width/heads features (${DEFAULT-VALUE}).")
        int heads;

        @Option(
                names = "--kv-heads",
                description =
                        "Key/value heads of a layer, each for as many query heads (half of --heads,"
                                + " or 1 if that is odd).")
        @Nullable Integer keyValueHeads;

        /** The number of tokens of a window. */
        @Option(
                names = "--context",
                defaultValue = "128",
                description = "Tokens that the model sees at a time (${DEFAULT-VALUE}).")
        public int context;

        /** The number of tokens of the vocabulary. */
        @Option(
                names = "--vocabulary",
                defaultValue = "1024",
                description =
                        "Tokens of the tokenizer that is made of the sentences: bytes, and pairs of"
                                + " tokens that come together often (${DEFAULT-VALUE}).")
        public int vocabulary;

        @Option(
                names = "--precision",
                defaultValue = "float32",
                description =
                        "Arithmetic of the products of all layers: float32, or bfloat16 where the"
                                + " processor or the GPU has it (${DEFAULT-VALUE}). Weights, sums"
                                + " and the update are float32 in both.")
        Precision precision = Precision.FLOAT32;

        /** Creates the sizes; they are set by the command line. */
        public LmSizes() {}

        /** Refuses sizes that do not fit each other. */
        public void check() {
            positive("--layers", layers);
            positive("--width", width);
            positive("--heads", heads);
            positive("--context", context);
            positive("--kv-heads", keyValueHeads());
            if (vocabulary < BytePairs.LEAST) {
                throw new BadInputException(
                        "--vocabulary must be %d or more, the 256 bytes and the end of a text, not"
                                + " %d",
                        BytePairs.LEAST, vocabulary);
            }
            checkPrecision();
            if (width % (2 * heads) != 0) {
                throw new BadInputException(
                        "--width %d does not give each of the %d heads the same, even number of"
                                + " features, which rotary positions turn in pairs: use a multiple"
                                + " of %d, or other --heads",
                        width, heads, 2 * heads);
            }
            if (heads % keyValueHeads() != 0) {
                throw new BadInputException(
                        "--kv-heads %d cannot be shared evenly by %d query heads: use a divisor of"
                                + " %2$d",
                        keyValueHeads, heads);
            }
        }

        private void checkPrecision() {
            BadInputException.check(
                    "--precision " + precision + ": ", () -> new LinearProduct(precision));
        }

        int keyValueHeads() {
            return keyValueHeads != null ? keyValueHeads : heads % 2 == 0 ? heads / 2 : 1;
        }

        /**
         * Returns the hidden features of a gated MLP that is as large as one of 4 width without.
         */
        int hidden() {
            return (8 * width / 3 + MULTIPLE - 1) / MULTIPLE * MULTIPLE;
        }

        /** {@inheritDoc} */
        @Override
        public String toString() {
            return ("%d layers of %d features, %d heads, %d key/value heads, %d hidden features, %d"
                            + " tokens at a time")
                    .formatted(layers, width, heads, keyValueHeads(), hidden(), context);
        }
    }
}
