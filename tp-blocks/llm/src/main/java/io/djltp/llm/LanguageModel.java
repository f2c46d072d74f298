package io.djltp.llm;

import ai.djl.Device;
import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.exchange.NameMapping;
import io.djltp.exchange.PretrainedWeights;
import io.djltp.exchange.WeightExport;
import io.djltp.internal.Errors;
import io.djltp.nn.LoraConfig;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.FileSystems;
import java.nio.file.FileVisitOption;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.PathMatcher;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Stream;

/**
 * A language model of a Hugging Face folder.
 *
 * <pre>{@code
 * try (LanguageModel model = LanguageModel.load(folder)) {
 *     Block network = model.getModel().getBlock(); // token ids [B, T] to logits [B, T, vocabulary]
 * }
 * }</pre>
 *
 * <p>The folder has {@code config.json}, {@code model.safetensors} or its shards with {@code
 * model.safetensors.index.json}, and optionally {@code tokenizer.json} and {@code
 * generation_config.json}. Names, shapes and types of all tensors are checked before any is read.
 * The network is one of this library's layers, of which nothing is in memory at first: a {@link
 * io.djltp.training.ParallelTrainer} or {@link io.djltp.training.ParallelPredictor} of the model
 * reads for each rank the bytes of its shards, {@link #readWhole} all.
 */
public final class LanguageModel implements AutoCloseable {

    /** The files of a folder that a saved model has as they are. */
    private static final List<String> COPIED =
            List.of(
                    ("config.json generation_config.json tokenizer.json"
                                    + " tokenizer_config.json special_tokens_map.json added_tokens.json"
                                    + " chat_template.jinja tokenizer.model vocab.json vocab.txt modules.json"
                                    + " config_sentence_transformers.json merges.txt")
                            .split(" "));

    /** What {@link Pooling} reads beside them, such as {@code 1_Pooling} and {@code 2_Dense}. */
    private static final PathMatcher POOLING =
            FileSystems.getDefault()
                    .getPathMatcher(
                            "glob:{sentence_*_config.json,[0-9]_*/config.json,"
                                    + "[0-9]_*/model.safetensors}");

    static final String TOKENIZER = "tokenizer.json";

    private static final Shape PROBE = new Shape(1, 1);

    private final Path folder;
    private final ModelConfig config;
    private final GenerationOptions generation;
    private final @Nullable HuggingFaceTokenizer tokenizer;
    private final int tokenBytes;
    private final NameMapping mapping;
    private final Model model;
    private final PretrainedWeights weights;
    private final @Nullable Adapter adapter;
    private @Nullable ChatTemplate chatTemplate;

    private LanguageModel(Builder builder) throws IOException, MalformedModelException {
        folder = builder.folder;
        config = ModelConfig.read(folder);
        GenerationOptions options = GenerationOptions.read(folder, config);
        mapping = config.family().mapping();
        String end = ChatTemplate.tokens(folder).get("eos_token");
        Path words = folder.resolve(TOKENIZER);
        boolean hasWords = Files.exists(words);
        tokenBytes = hasWords ? TokenizerIds.mostBytes(words, config.getVocabularySize()) : 0;
        tokenizer = hasWords ? tokenizer(words, false, config.getMaxPositions()) : null;
        generation = options.toBuilder().optStopTokens(ends(options, tokenizer, end)).build();
        Model created = null;
        PretrainedWeights opened = null;
        Adapter added = null;
        try {
            PretrainedWeights.Builder files =
                    PretrainedWeights.builder().setPath(folder).setMapping(mapping);
            created = Model.newInstance(config.getModelType(), builder.device);
            created.setBlock(config.newBlock(builder.shardedLogits));
            if (builder.adapter != null) {
                added = Adapter.read(builder.adapter, created, config.family());
            } else if (builder.lora != null) {
                added = Adapter.of(builder.lora, created, config.family());
            }
            opened = (added == null ? files : files.optSkipParameters(Adapter.PARAMETERS)).build();
            bind(opened, created, config);
            if (added != null) {
                added.bind(created, PROBE);
            }
        } catch (IOException | MalformedModelException | RuntimeException e) {
            close(tokenizer, created, opened, added);
            throw e;
        }
        model = created;
        weights = opened;
        adapter = added;
    }

    private static void bind(PretrainedWeights weights, Model model, ModelConfig config)
            throws IOException, MalformedModelException {
        try {
            weights.bind(model, PROBE);
        } catch (MalformedModelException e) {
            throw new MalformedModelException(
                    ("%s%nconfig.json is of a %s: it must be that of the weights. Weights of a"
                                    + " decoder need its head, which AutoModelForCausalLM saves;"
                                    + " quantized weights cannot be read")
                            .formatted(e.getMessage(), config),
                    e);
        }
    }

    /** Returns the ids that end a text, and the one that the tokenizer's files name. */
    private static List<Integer> ends(
            GenerationOptions options,
            @Nullable HuggingFaceTokenizer tokenizer,
            @Nullable String end) {
        List<Integer> ids = new ArrayList<>(options.getStopTokens());
        if (tokenizer != null && end != null) {
            long[] own = tokenizer.encode(end, false, false).getIds();
            if (own.length == 1 && !ids.contains((int) own[0])) {
                ids.add((int) own[0]);
            }
        }
        return ids;
    }

    /**
     * Opens a folder. Its weights are read later, by who uses the model.
     *
     * @param folder the folder
     * @return the model
     * @throws IOException if a file is missing, is not complete, or cannot be read
     * @throws MalformedModelException if {@code config.json} has a field that is not known or is
     *     not implemented, the tensors are not those of such a model, or the tokenizer has ids that
     *     the model does not have
     */
    public static LanguageModel load(Path folder) throws IOException, MalformedModelException {
        return builder(folder).load();
    }

    /**
     * Creates a builder that loads a folder.
     *
     * @param folder the folder
     * @return a new builder
     */
    public static Builder builder(Path folder) {
        return new Builder(folder);
    }

    /**
     * Opens a tokenizer.
     *
     * @param file the file
     * @param cuts whether it leaves out what is too long
     * @param longest the tokens of the longest text
     */
    static HuggingFaceTokenizer tokenizer(Path file, boolean cuts, int longest)
            throws IOException, MalformedModelException {
        Engine.getEngine("PyTorch"); // else DJL looks for GPUs, and warns where there is no driver
        try {
            String length = Integer.toString(longest); // else it warns
            String cut = Boolean.toString(cuts);
            return HuggingFaceTokenizer.newInstance(
                    file, Map.of("truncation", cut, "padding", "false", "maxLength", length));
        } catch (RuntimeException e) { // of its native library
            throw new MalformedModelException(file + " is no tokenizer: " + e.getMessage(), e);
        }
    }

    /**
     * Reads all weights, whole: for DJL's own {@code Predictor} and {@code Trainer}, and to save.
     */
    public void readWhole() {
        model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, PROBE);
    }

    /**
     * Saves the model as a folder that {@link #load} and others read: weights with the names of
     * Hugging Face, and the other files of the folder that it was loaded from. The weights of a
     * model with adapters are their sums with these.
     *
     * @param target the folder, new or without weights
     * @param dataType the data type of the weights: float32, float16 or bfloat16
     * @throws IOException if a file cannot be written, or there are weights already
     * @throws IllegalStateException if the weights are neither read nor on ranks
     */
    public void save(Path target, DataType dataType) throws IOException {
        WeightExport.builder()
                .setMapping(mapping)
                .optDataType(dataType)
                .build()
                .write(model.getBlock(), target);
        List<Path> copied;
        try (Stream<Path> files = Files.walk(folder, 2, FileVisitOption.FOLLOW_LINKS)) {
            copied = files.map(folder::relativize).filter(LanguageModel::isCopied).toList();
        }
        for (Path name : copied) {
            Path copy = target.resolve(name);
            Files.createDirectories(Objects.requireNonNull(copy.getParent()));
            Files.copy(folder.resolve(name), copy, StandardCopyOption.REPLACE_EXISTING);
        }
        ConfigFields.setDataType(target.resolve("config.json"), dataType);
    }

    private static boolean isCopied(Path name) {
        return COPIED.contains(name.toString()) || POOLING.matches(name);
    }

    /**
     * Saves the adapters as PEFT does: {@code adapter_config.json} and {@code
     * adapter_model.safetensors}, which {@link Builder#optAdapter} and PEFT read.
     *
     * @param target the folder, new or without adapters
     * @param dataType the data type of the weights: float32, float16 or bfloat16
     * @throws IOException if a file cannot be written, or there are adapters already
     * @throws IllegalStateException if the model has no adapters, or they are neither read nor on
     *     ranks
     */
    public void saveAdapter(Path target, DataType dataType) throws IOException {
        if (adapter == null) {
            throw new IllegalStateException(
                    "The model has no adapters: load it with optLora or optAdapter");
        }
        adapter.save(model.getBlock(), target, dataType, config, folder);
    }

    /** {@return the folder that was loaded} */
    public Path getFolder() {
        return folder;
    }

    /** {@return what {@code config.json} says} */
    public ModelConfig getConfig() {
        return config;
    }

    /**
     * Returns how the model is meant to generate: what {@code generation_config.json} says, by
     * default the likeliest token. A text ends at the {@code eos_token_id} of this file or of
     * {@code config.json}, at its {@code stop_strings}, and at the {@code eos_token} of the
     * tokenizer.
     *
     * @return the options
     */
    public GenerationOptions getGenerationOptions() {
        return generation;
    }

    /** {@return the tokenizer, or {@code null} if the folder has no {@code tokenizer.json}} */
    public @Nullable HuggingFaceTokenizer getTokenizer() {
        return tokenizer;
    }

    /** Returns the most bytes of a text that a token stands for, or 0 if there is no bound. */
    int tokenBytes() {
        return tokenBytes;
    }

    /**
     * Returns the chat template, which makes a prompt of messages.
     *
     * @return the template, or {@code null} if the folder has none
     * @throws IllegalArgumentException if the template is not valid, or uses what this library does
     *     not support; names the file, the line, and what it is
     */
    public synchronized @Nullable ChatTemplate getChatTemplate() {
        if (chatTemplate == null) {
            try {
                chatTemplate = ChatTemplate.read(folder);
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            } catch (MalformedModelException e) {
                throw new IllegalArgumentException(e.getMessage(), e);
            }
        }
        return chatTemplate;
    }

    /**
     * Returns the model of DJL, whose block takes token ids [B, T], and optionally a mask [B, T] or
     * [B, T, T] whose 0 hides a token, and returns logits [B, T, vocabulary]. That of an encoder
     * returns the features of the tokens, [B, T, width], and takes after the mask the kinds of the
     * tokens, [B, T], which are 0 without it.
     *
     * @return the model, which is closed with this one
     */
    public Model getModel() {
        return model;
    }

    /** {@return the adapters, or {@code null} without} */
    @Nullable Adapter getAdapter() {
        return adapter;
    }

    /** Closes the model, its files and its tokenizer. */
    @Override
    public void close() {
        close(tokenizer, model, weights, adapter);
    }

    private static void close(
            @Nullable HuggingFaceTokenizer tokenizer,
            @Nullable Model model,
            @Nullable PretrainedWeights weights,
            @Nullable Adapter adapter) {
        try (weights;
                adapter;
                model;
                tokenizer) {
            // the last one first
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** The builder that loads a {@link LanguageModel}. */
    public static final class Builder {

        private final Path folder;
        private Device device = Device.cpu();
        private boolean shardedLogits;
        private @Nullable LoraConfig lora;
        private @Nullable Path adapter;

        private Builder(Path folder) {
            this.folder = folder;
        }

        /**
         * Sets where {@link #readWhole} puts the weights. That of ranks is theirs. Default: the
         * CPU.
         *
         * @param device the device
         * @return this builder
         */
        public Builder optDevice(Device device) {
            this.device = device;
            return this;
        }

        /**
         * Sets whether each rank keeps the logits of its part of the vocabulary, as {@link
         * io.djltp.loss.VocabParallelCrossEntropyLoss} takes them. Default: false, the logits of
         * all ranks are put together, as predictions need them.
         *
         * @param shardedLogits whether logits stay on their rank
         * @return this builder
         */
        public Builder optShardedLogits(boolean shardedLogits) {
            this.shardedLogits = shardedLogits;
            return this;
        }

        /**
         * Adds new LoRA adapters, and freezes the weights: a {@link
         * io.djltp.training.ParallelTrainer} trains only the adapters. Targets are Hugging Face's
         * names of layers, such as {@code q_proj} or {@code c_attn}, but not the head. Default:
         * none.
         *
         * @param config the adapters
         * @return this builder
         */
        public Builder optLora(LoraConfig config) {
            lora = config;
            return this;
        }

        /**
         * Adds the LoRA adapters of a folder of PEFT, {@code adapter_config.json} and {@code
         * adapter_model.safetensors}, beside the weights, which are frozen. Default: none.
         *
         * @param path the folder
         * @return this builder
         */
        public Builder optAdapter(Path path) {
            adapter = path;
            return this;
        }

        /**
         * Opens the folder, as {@link LanguageModel#load} does.
         *
         * @return the model
         * @throws IOException if a file is missing, is not complete, or cannot be read
         * @throws MalformedModelException if the folder is not that of a model that is implemented,
         *     or the adapter is of another model, or of a kind that is not implemented
         * @throws IllegalArgumentException if a target of {@code optLora} is no layer, or {@code
         *     optAdapter} is given too
         */
        public LanguageModel load() throws IOException, MalformedModelException {
            Errors.check(
                    lora == null || adapter == null,
                    "optLora adds new adapters, and optAdapter those of a folder: give one of both");
            return new LanguageModel(this);
        }
    }
}
