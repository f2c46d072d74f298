package io.djltp.llm;

import ai.djl.MalformedModelException;
import ai.djl.nn.Block;

import com.google.gson.JsonParseException;

import io.djltp.internal.Errors;
import io.djltp.llm.ModelFamily.Trait;
import io.djltp.nn.attention.RotaryEmbedding;
import io.djltp.nn.attention.RotaryScaling;
import io.djltp.torch.Precision;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;

/**
 * What the {@code config.json} of a Hugging Face folder says about a language model.
 *
 * <p>It is read strictly: a field that changes what the model computes is implemented, or throws by
 * its name. So does a field that is not known.
 *
 * <table>
 * <caption>Architectures</caption>
 * <tr><th>model_type</th><th>models</th></tr>
 * <tr><td>{@code llama}</td><td>Llama 2, 3, 3.1, 3.2, and what is built like them</td></tr>
 * <tr><td>{@code mistral}, {@code ministral}</td><td>Mistral 7B, Ministral 8B</td></tr>
 * <tr><td>{@code qwen2}</td><td>Qwen 2 and 2.5</td></tr>
 * <tr><td>{@code qwen3}</td><td>Qwen 3, dense</td></tr>
 * <tr><td>{@code smollm3}</td><td>SmolLM3</td></tr>
 * <tr><td>{@code phi3}</td><td>Phi-3, Phi-3.5, Phi-4 and its mini</td></tr>
 * <tr><td>{@code starcoder2}</td><td>StarCoder2</td></tr>
 * <tr><td>{@code gpt2}</td><td>GPT-2</td></tr>
 * <tr><td>{@code bert}</td><td>the encoders BERT, MiniLM and others of this form</td></tr>
 * <tr><td>{@code roberta}, {@code xlm-roberta}, {@code camembert}</td><td>the encoders RoBERTa,
 *     XLM-R, multilingual E5, BGE-M3, CamemBERT and others of this form</td></tr>
 * <tr><td>{@code distilbert}</td><td>the encoder DistilBERT</td></tr>
 * </table>
 *
 * <p>Dropout, which some configurations name, is not part of the networks.
 */
public final class ModelConfig {

    private static final int MOST_LAYERS = 1000; // of published models 126

    /** The function between the layers of an MLP. */
    public enum Activation {
        /** x times its sigmoid. */
        SILU("silu", "swish"),
        /** The Gaussian error linear unit. */
        GELU("gelu"),
        /** Its approximation by a hyperbolic tangent. */
        GELU_TANH("gelu_new", "gelu_pytorch_tanh"),
        /** The positive part of x. */
        RELU("relu");

        private final List<String> names;

        Activation(String... names) {
            this.names = List.of(names);
        }

        private static List<String> known() {
            return Arrays.stream(values()).flatMap(each -> each.names.stream()).toList();
        }

        private static Activation named(String name) {
            return Arrays.stream(values())
                    .filter(each -> each.names.contains(name))
                    .findFirst()
                    .orElseThrow();
        }
    }

    private final ModelFamily family;
    private final int vocabularySize;
    private final int width;
    private final int layers;
    private final int heads;
    private final int keyValueHeads;
    private final int headDim;
    private final int hiddenFeatures;
    private final int firstPosition;
    private final int maxPositions;
    private final float epsilon;
    private final Activation activation;
    private final boolean inputBias;
    private final boolean outputBias;
    private final boolean mlpBias;
    private final boolean tied;
    private final @Nullable RotaryEmbedding rotary; // or null: positions are learned
    private final int tokenTypes; // of an encoder
    private final List<Boolean> rotaryLayers;
    private final List<Integer> windows; // of each layer, 0 for none

    private ModelConfig(ConfigFields fields) throws MalformedModelException {
        family = fields.family();
        boolean learned = family.is(Trait.LEARNED); // positions
        vocabularySize = fields.count("vocab_size", 0);
        width = fields.count(family.named("hidden_size"), 0);
        String depth = family.named("num_hidden_layers");
        layers = fields.count(depth, 0);
        if (layers > MOST_LAYERS) {
            throw fields.malformed("%s is %s, and must be %s or less", depth, layers, MOST_LAYERS);
        }
        heads = fields.count(family.named("num_attention_heads"), 0);
        keyValueHeads = fields.count("num_key_value_heads", heads);
        if (heads % keyValueHeads != 0) {
            throw fields.malformed(
                    "num_attention_heads %d is not a multiple of num_key_value_heads %d",
                    heads, keyValueHeads);
        }
        if (!fields.has("head_dim") && width % heads != 0) {
            throw fields.malformed(
                    "%d heads do not divide a width of %d, and head_dim is not there",
                    heads, width);
        }
        headDim = fields.count("head_dim", width / heads);
        String hidden = family.named("intermediate_size");
        hiddenFeatures = fields.count(hidden, hidden.equals("n_inner") ? 4 * width : 0);
        int longest = fields.count(family.named("max_position_embeddings"), 0);
        epsilon = (float) fields.positive(family.named("rms_norm_eps"), 0);
        String function = family.named("hidden_act");
        activation = Activation.named(fields.choose(function, Activation.known(), null));
        outputBias = fields.flag(family.named("attention_bias"), family.is(Trait.CLASSIC));
        inputBias = outputBias || family.is(Trait.INPUT_BIAS);
        mlpBias = fields.flag(family.named("mlp_bias"), family.is(Trait.CLASSIC));
        tied = fields.flag("tie_word_embeddings", false);
        rotary = learned ? null : fields.rotary(headDim, longest);
        rotaryLayers = fields.rotaryLayers(layers);
        RotaryScaling scaling = rotary == null ? null : rotary.getScaling();
        firstPosition = (int) fields.number("pad_token_id", -1) + 1;
        if (firstPosition < 0 || firstPosition >= longest) {
            throw fields.malformed(
                    "pad_token_id is %s, and must be an id below the %s of max_position_embeddings",
                    firstPosition - 1, longest);
        }
        maxPositions = scaling == null ? longest - firstPosition : scaling.getMaxPositions(longest);
        windows = fields.windows(layers, maxPositions, rotaryLayers);
        tokenTypes = fields.has("type_vocab_size") ? fields.count("type_vocab_size", 0) : 0;
        fields.checkRest(family);
    }

    /**
     * Reads the configuration of a folder.
     *
     * @param folder a folder with a {@code config.json}, or such a file
     * @return the configuration
     * @throws IOException if there is no such file, or it cannot be read
     * @throws MalformedModelException if a field is missing, is not known, or has a value that is
     *     not implemented
     */
    public static ModelConfig read(Path folder) throws IOException, MalformedModelException {
        return new ModelConfig(ConfigFields.read(folder));
    }

    /**
     * Reads a configuration that is in no file.
     *
     * @param json the fields of a {@code config.json}
     * @return the configuration
     * @throws IllegalArgumentException if a field is missing, is not known, or has a value that is
     *     not implemented
     */
    public static ModelConfig parse(String json) {
        try {
            return new ModelConfig(ConfigFields.parse(json));
        } catch (MalformedModelException | JsonParseException e) {
            throw new IllegalArgumentException(e.getMessage(), e);
        }
    }

    /** {@return the architecture, a {@code model_type} of the table above} */
    public String getModelType() {
        return family.toString();
    }

    /**
     * {@return whether the model is an encoder, whose tokens see those after them too, and whose
     * output is features of each token, not logits}
     */
    public boolean isEncoder() {
        return family.is(Trait.ENCODER);
    }

    /**
     * {@return how many kinds of tokens an encoder knows, such as those of a first and a second
     * sentence; 0 of a decoder, and of DistilBERT}
     */
    public int getTokenTypes() {
        return tokenTypes;
    }

    /** {@return the number of token ids, which may be more than the tokenizer has} */
    public int getVocabularySize() {
        return vocabularySize;
    }

    /** {@return the width D, the features of a token between layers} */
    public int getWidth() {
        return width;
    }

    /** {@return the number of layers} */
    public int getLayers() {
        return layers;
    }

    /** {@return the number of query heads} */
    public int getHeads() {
        return heads;
    }

    /** {@return the number of key/value heads, which divides that of the query heads} */
    public int getKeyValueHeads() {
        return keyValueHeads;
    }

    /**
     * {@return the features of a head, of which all heads together may have another number than the
     * width}
     */
    public int getHeadDim() {
        return headDim;
    }

    /** {@return the features between the layers of an MLP} */
    public int getHiddenFeatures() {
        return hiddenFeatures;
    }

    /**
     * {@return how many positions the model is made for, prompt and new tokens together, with what
     * scaled rotary positions add to those of {@code max_position_embeddings}}
     */
    public int getMaxPositions() {
        return maxPositions;
    }

    /** Returns the row of the position of the first token, which RoBERTa has behind its padding. */
    int getFirstPosition() {
        return firstPosition;
    }

    /** {@return the epsilon of all norms} */
    public float getEpsilon() {
        return epsilon;
    }

    /** {@return whether norms are RMS norms, without mean and bias, and not layer norms} */
    public boolean isRmsNorm() {
        return !family.is(Trait.CLASSIC);
    }

    /** {@return the function between the layers of an MLP} */
    public Activation getActivation() {
        return activation;
    }

    /** {@return whether the MLP is gated, {@code down(act(gate(x)) * up(x))}} */
    public boolean isGated() {
        return !family.is(Trait.CLASSIC);
    }

    /** {@return whether the projections to queries, keys and values have biases} */
    public boolean hasQueryKeyValueBias() {
        return inputBias;
    }

    /** Returns what is the same in all models of the architecture. */
    ModelFamily family() {
        return family;
    }

    /** Returns whether queries, keys and values are one tensor. */
    boolean isFused() {
        return family.is(Trait.FUSED);
    }

    /** {@return whether the output projection of attention has a bias} */
    public boolean hasOutputBias() {
        return outputBias;
    }

    /** {@return whether the layers of an MLP have biases} */
    public boolean hasMlpBias() {
        return mlpBias;
    }

    /** {@return whether queries and keys of each head are normalized before they are turned} */
    public boolean hasQueryKeyNorm() {
        return family.is(Trait.HEAD_NORM);
    }

    /** {@return whether the head of the model is its embedding} */
    public boolean isTied() {
        return tied;
    }

    /** {@return the rotary positions, or {@code null} if the model has learned ones} */
    public @Nullable RotaryEmbedding getRotary() {
        return rotary;
    }

    /**
     * Returns the rotary positions of a layer.
     *
     * @param layer the number of the layer, from 0
     * @return the positions, or {@code null} if its queries and keys stay as they are
     */
    public @Nullable RotaryEmbedding getRotary(int layer) {
        return rotaryLayers.get(layer) ? rotary : null;
    }

    /**
     * Returns how many tokens a token of a layer sees: itself and those just before it.
     *
     * @param layer the number of the layer, from 0
     * @return the number of tokens, or 0 if it sees all
     */
    public int getSlidingWindow(int layer) {
        return windows.get(layer);
    }

    /**
     * Creates a network of these sizes, without values: to train it from scratch, or to plan it.
     *
     * @param shardedLogits whether each rank keeps the logits of its part of the vocabulary, as
     *     {@link LanguageModel.Builder#optShardedLogits} says it
     * @return the network, as {@link LanguageModel#getModel} has it
     */
    public Block newBlock(boolean shardedLogits) {
        return isEncoder()
                ? new EncoderNetwork(this)
                : new DecoderNetwork(this, !shardedLogits, false, Precision.FLOAT32);
    }

    /**
     * Creates a decoder of these sizes, without values, to train it with sharded logits.
     *
     * @param sequenceParallel whether tokens are cut over the ranks between attention and MLPs,
     *     from the embedding to the head
     * @param precision the arithmetic of the products of all layers
     * @return the network
     * @throws IllegalArgumentException if the model is an encoder, tokens are to be cut and its
     *     positions are learned, or layers do not have the precision
     */
    public Block newDecoder(boolean sequenceParallel, Precision precision) {
        Errors.check(!isEncoder(), "A %s has no logits: use newBlock(false)", family);
        return new DecoderNetwork(this, false, sequenceParallel, precision);
    }

    /** Returns architecture and sizes. */
    @Override
    public String toString() {
        return String.format(
                Locale.ROOT,
                "%s of %d layers, width %d, %d heads and %d key/value heads of %d features,"
                        + " %d hidden features, %d token ids, %d positions",
                family,
                layers,
                width,
                heads,
                keyValueHeads,
                headDim,
                hiddenFeatures,
                vocabularySize,
                maxPositions);
    }
}
