package io.djltp.llm;

import ai.djl.MalformedModelException;
import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;

import io.djltp.internal.Errors;
import io.djltp.internal.report.SystemMemory;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;

/**
 * Generates text with a language model over ranks, each of which holds its part of the weights and
 * of the cache of keys and values.
 *
 * <pre>{@code
 * try (Generator generator = Generator.builder().setPath(folder).build()) {
 *     Generation text = generator.generate("Once upon a time", generator.getDefaults());
 *     while (text.hasNext()) {
 *         System.out.print(text.next().text());
 *     }
 * }
 * }</pre>
 *
 * <p>The tokens are the same for any number of ranks. By default there is a rank for each processor
 * that the JVM may use. In a job of several processes, process 0 leads and the others {@link
 * #follow}, see {@link Builder#optLeader}; without a leader all processes make the same calls, from
 * one thread each, and get the same tokens.
 *
 * <p>The keys and values of an earlier text stay in the cache: a prompt that begins like it, such
 * as the next turn of a chat, is computed from where they differ. So is a prompt that begins like
 * one that is computed at the same time.
 *
 * <p>Any number of threads may generate at the same time (continuous batching, Yu et al., 2022, <a
 * href="https://www.usenix.org/conference/osdi22/presentation/yu">Orca</a>). Texts join and leave
 * the batch at each step. Texts that find no room begin in the order in which they came.
 */
public final class Generator implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(Generator.class);

    static final int ROWS = 256; // of a step
    private static final int LENGTH = 2048; // by default, if the model has as many positions

    private final LanguageModel model;
    private final boolean ownsModel;
    private final Decoder decoder;
    private final GenerationOptions defaults;
    private final GenerationLoop loop;
    private volatile CausalForward.@Nullable Past lastPast;

    private Generator(Builder builder, LanguageModel model, boolean ownsModel) throws IOException {
        this.model = model;
        this.ownsModel = ownsModel;
        ModelConfig config = model.getConfig();
        Errors.check(
                !config.isEncoder(),
                "The model in %s is an encoder, %s, which generates nothing: use a decoder",
                model.getFolder(),
                config.getModelType());
        Adapter adapter = model.getAdapter();
        if (adapter != null) {
            adapter.checkSaved();
        }
        int most = config.getMaxPositions();
        int length = builder.maxLength == 0 ? Math.min(most, LENGTH) : builder.maxLength;
        Errors.check(
                length <= most,
                "The model is made for %s positions, not for a length of %s: use a maximum length of"
                        + " %1$s or less",
                most,
                length);
        ParallelConfig parallel = builder.parallel == null ? byDefault(config) : builder.parallel;
        Decoder.Size size = new Decoder.Size(builder.batch, length, Math.max(ROWS, builder.batch));
        checkMemory(config, builder.weights, parallel, size);
        decoder =
                new Decoder(
                        config,
                        model.getFolder(),
                        adapter,
                        builder.weights,
                        parallel,
                        size,
                        builder.leader);
        loop = new GenerationLoop(decoder);
        defaults = model.getGenerationOptions();
        logger.debug(
                "{}: {} weights by {}, {} MB a rank",
                model.getFolder(),
                builder.weights,
                decoder.kernel(),
                decoder.bytes().get(0) / 1_000_000);
    }

    private static ParallelConfig byDefault(ModelConfig config) {
        int processors = Runtime.getRuntime().availableProcessors();
        int ranks = Math.min(processors, config.getHeads());
        return ParallelConfig.builder()
                .setMode(ParallelMode.TENSOR)
                .setRanks(ranks)
                .optThreadsPerRank(1)
                .build();
    }

    private static void checkMemory(
            ModelConfig config, WeightType type, ParallelConfig parallel, Decoder.Size size) {
        List<GenerationMemory> ranks =
                GenerationMemory.of(config, type, parallel.getRanks(), size.batch(), size.length());
        long local = parallel.getLocalRanks(); // of which the first rank has most
        long weights = ranks.get(0).weights() * local;
        long cache = ranks.get(0).cache() * local;
        long left = SystemMemory.available().orElse(Long.MAX_VALUE);
        Errors.check(
                weights + cache <= left,
                "The model needs %.1f GB for %s weights and %.1f GB for a cache of %s texts of %s"
                        + " tokens, and this machine has %.1f GB left. Use smaller weights (int8),"
                        + " a smaller maximum length or batch, or more machines",
                weights / 1e9,
                type,
                cache / 1e9,
                size.batch(),
                size.length(),
                left / 1e9);
    }

    /**
     * Begins to generate text after a prompt.
     *
     * @param prompt the prompt
     * @param options how tokens are chosen
     * @return the tokens, as they are generated
     * @throws IllegalArgumentException if the prompt is empty or too long
     * @throws IllegalStateException if the model has no tokenizer, or the generator is closed
     */
    public Generation generate(String prompt, GenerationOptions options) {
        return generate(List.of(prompt), options);
    }

    /**
     * Begins to generate text after each of some prompts, together. Equal prompts get tokens that
     * are drawn independently.
     *
     * @param prompts the prompts, of any lengths
     * @param options how tokens are chosen, for all
     * @return the tokens, as they are generated
     * @throws IllegalArgumentException if a prompt is empty or too long
     * @throws IllegalStateException if the model has no tokenizer, or the generator is closed
     */
    public Generation generate(List<String> prompts, GenerationOptions options) {
        checkOpen();
        return generateIds(prompts.stream().map(this::encode).toList(), options);
    }

    /**
     * Begins to generate the answer of the assistant to the last message of a chat. Of a chat that
     * goes on, only what is new is computed.
     *
     * @param messages the messages, the oldest first
     * @param options how tokens are chosen; those of {@link #getDefaults} stop at the end of the
     *     answer
     * @return the tokens, as they are generated
     * @throws IllegalArgumentException if the chat template rejects the messages, or the prompt is
     *     too long
     * @throws IllegalStateException if the model has no chat template or no tokenizer, or the
     *     generator is closed
     */
    public Generation chat(List<ChatMessage> messages, GenerationOptions options) {
        checkOpen();
        Errors.check(!messages.isEmpty(), "The chat has no message");
        ChatTemplate template = model.getChatTemplate();
        if (template == null) {
            throw Errors.state(
                    "There is no chat template in %s, neither chat_template.jinja nor chat_template"
                            + " of tokenizer_config.json: use generate",
                    model.getFolder());
        }
        return generateIds(List.of(encodeChat(template.render(messages, true))), options);
    }

    /**
     * Begins to generate tokens after each of some prompts. Equal prompts get tokens that are drawn
     * independently.
     *
     * @param prompts the token ids of the prompts, of any lengths
     * @param options how tokens are chosen, for all
     * @return the tokens, as they are generated
     * @throws IllegalArgumentException if a prompt is empty or too long, or has an id that the
     *     model does not have
     * @throws IllegalStateException if stop strings are given and the model has no tokenizer, or
     *     the generator is closed
     */
    public Generation generateIds(List<int[]> prompts, GenerationOptions options) {
        checkOpen();
        Errors.check(!prompts.isEmpty(), "There must be a prompt or more");
        for (int[] prompt : prompts) {
            check(prompt);
        }
        int ids = model.getConfig().getVocabularySize();
        for (int id : options.getStopTokens()) {
            Errors.check(id >= 0 && id < ids, "The stop token %s is none of %s ids", id, ids);
        }
        if (!options.getStopStrings().isEmpty()) {
            tokenizer();
        }
        return new Generation(loop, model.getTokenizer(), prompts, options, false);
    }

    private void checkOpen() {
        loop.check();
        Errors.checkState(
                !decoder.isFollower(),
                "Process 0 leads the generation: call generate there, and follow() here");
    }

    private void check(int[] prompt) {
        Errors.check(
                prompt.length > 0,
                "A prompt has no tokens. Begin it with a word, or with the id of the beginning"
                        + " of a text");
        checkRoom(prompt.length, prompt.length + " tokens");
        int ids = model.getConfig().getVocabularySize();
        for (int id : prompt) {
            Errors.check(id >= 0 && id < ids, "The id %s of the prompt is none of %s", id, ids);
        }
    }

    private void checkRoom(long tokens, String prompt) {
        int length = decoder.size().length();
        int most = model.getConfig().getMaxPositions();
        Errors.check(
                tokens < length,
                "The prompt has %s, and the generator has room for %s, with one to generate. Use a"
                        + " shorter prompt%s",
                prompt,
                length,
                length < most ? ", or a maximum length of up to " + most : "");
    }

    /**
     * Returns the ids of a prompt, with those that the tokenizer puts before it.
     *
     * @param text the prompt
     * @return the ids
     * @throws IllegalArgumentException if the prompt has so many bytes that it is too long,
     *     whatever its tokens are
     * @throws IllegalStateException if the model has no tokenizer
     */
    public int[] encode(String text) {
        return encode(text, true);
    }

    private int[] encode(String text, boolean whole) {
        HuggingFaceTokenizer tokenizer = tokenizer();
        int most = model.tokenBytes();
        if (most > 0) { // the tokens of a long text take seconds
            long bytes = text.getBytes(StandardCharsets.UTF_8).length;
            long least = (bytes + most - 1) / most;
            checkRoom(least, bytes + " bytes, which are " + least + " tokens or more");
        }
        long[] ids = tokenizer.encode(text, whole, false).getIds();
        return Arrays.stream(ids).mapToInt(Math::toIntExact).toArray();
    }

    /**
     * Returns the ids of a prompt that a {@link ChatTemplate} has rendered. The tokenizer puts no
     * ids before it, because the text begins with those that the model expects.
     *
     * @param text the prompt
     * @return the ids
     * @throws IllegalArgumentException as {@link #encode}
     * @throws IllegalStateException if the model has no tokenizer
     */
    public int[] encodeChat(String text) {
        return encode(text, false);
    }

    /**
     * Returns the text of ids, without those that are no text.
     *
     * @param ids the ids
     * @return the text
     * @throws IllegalStateException if the model has no tokenizer
     */
    public String decode(int[] ids) {
        return tokenizer().decode(Arrays.stream(ids).asLongStream().toArray(), true);
    }

    private HuggingFaceTokenizer tokenizer() {
        HuggingFaceTokenizer tokenizer = model.getTokenizer();
        if (tokenizer == null) {
            throw Errors.state(
                    "There is no tokenizer.json in %s, so that prompts must be ids, without stop"
                            + " strings",
                    model.getFolder());
        }
        return tokenizer;
    }

    /**
     * Returns the logits of all tokens after a prompt, computed anew, where all ranks are of this
     * process.
     *
     * @param prompt the token ids
     * @return the logits, one for each id
     * @throws IllegalArgumentException as {@link #generateIds}
     */
    public float[] getLogits(int[] prompt) {
        checkOpen();
        check(prompt);
        Errors.check(
                !decoder.isDistributed(), "Logits are put together in one process only, for tests");
        try (Generation text = new Generation(loop, null, List.of(prompt), defaults, true)) {
            text.next();
            return Objects.requireNonNull(text.lastLogits);
        }
    }

    /**
     * Computes the next tokens of texts whose keys and values the caller keeps, as DJL's causal
     * models do: {@code TextGenerator} searches with it, by a predictor of {@link
     * io.djltp.llm.zoo.LanguageModelFactory}. All ranks must be of this process. As many texts as
     * {@link Builder#optBatch} has places for are computed together.
     *
     * <p>A call that gets the arrays of keys and values that the last one returned, as a greedy
     * search does, finds them in the cache of the generator: do not change such an array. Others
     * are copied into it.
     *
     * @param inputs token ids [B, T], their positions [B, T] and a mask [B, S + T], int64, then the
     *     keys and values of the S tokens before, of each layer in turn, [B, key/value heads, S, d]
     *     float32, which are left out if S is 0. A row of the mask is 0 for padding, then 1.
     *     Positions count from 0 at the first token that is no padding
     * @return logits [B, T, vocabulary], the keys and values of all S + T tokens, and the features
     *     behind the last norm, [B, T, width], float32 and by the manager of the ids; those of
     *     padding are 0
     * @throws IllegalArgumentException if the inputs are others, or a text is longer than {@link
     *     #getMaxLength}
     * @throws IllegalStateException if the generator is closed
     */
    public NDList forward(NDList inputs) {
        checkOpen();
        Errors.check(
                !decoder.isDistributed(),
                "The ranks of a causal model must be of one process. Use generate");
        NDManager manager = inputs.head().getManager();
        return new CausalForward(decoder, inputs)
                .compute(loop, manager, lastPast, returned -> lastPast = returned);
    }

    /**
     * Computes the part of this process in all that process 0 generates, see {@link
     * Builder#optLeader}. Returns when process 0 closes its generator.
     *
     * @throws IllegalStateException if this process does not follow, or the thread is interrupted,
     *     which ends the job
     * @throws io.djltp.rank.RankFailedException if a rank or a process fails
     */
    public void follow() {
        loop.check();
        Errors.checkState(
                decoder.isFollower(),
                "This process follows none: call follow() in the others of a job than process 0,"
                        + " with optLeader(true) in all");
        decoder.follow();
    }

    /** {@return how many texts are generated together now, at most the batch} */
    public int getRunning() {
        return loop.getRunning();
    }

    /** {@return how many texts wait until others have ended} */
    public int getWaiting() {
        return loop.getWaiting();
    }

    /**
     * Returns how the model is meant to generate: what its {@code generation_config.json} says, and
     * the tokens that end a text.
     *
     * @return the options
     */
    public GenerationOptions getDefaults() {
        return defaults;
    }

    /** {@return the model} */
    public LanguageModel getModel() {
        return model;
    }

    /** {@return the most tokens of a text, prompt and new ones together} */
    public int getMaxLength() {
        return decoder.size().length();
    }

    /** {@return how many texts are generated at a time} */
    public int getBatch() {
        return decoder.size().batch();
    }

    /** {@return the number of ranks of all processes} */
    public int getRanks() {
        return decoder.ranks();
    }

    /** {@return the library that computes the products, and its arithmetic} */
    public String getKernel() {
        return decoder.kernel();
    }

    /** {@return the bytes that weights and cache take of each rank of this process} */
    public List<Long> getBytes() {
        return decoder.bytes();
    }

    /**
     * Stops the ranks, and frees weights and cache. Threads that wait for a token get an {@link
     * IllegalStateException}.
     */
    @Override
    public void close() {
        loop.close();
        if (ownsModel) {
            model.close();
        }
    }

    /** {@return a new builder of a generator} */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link Generator}. */
    public static final class Builder {

        private @Nullable Path path;
        private @Nullable LanguageModel model;
        private @Nullable Path adapter;
        private @Nullable ParallelConfig parallel;
        private WeightType weights = WeightType.FLOAT32;
        private int maxLength;
        private int batch = 1;
        private boolean leader;

        private Builder() {}

        /**
         * Sets the folder of the model.
         *
         * @param path a folder of Hugging Face
         * @return this builder
         */
        public Builder setPath(Path path) {
            this.path = path;
            return this;
        }

        /**
         * Sets the model, instead of its folder.
         *
         * @param model the model, whose weights are read from its folder, and adapters from theirs;
         *     it is closed by the caller
         * @return this builder
         */
        public Builder setModel(LanguageModel model) {
            this.model = model;
            return this;
        }

        /**
         * Sets a folder of LoRA adapters in PEFT's files. Each rank adds them to its slices of the
         * weights. Default: none.
         *
         * @param path the folder, see {@link LanguageModel.Builder#optAdapter}
         * @return this builder
         */
        public Builder optAdapter(Path path) {
            adapter = path;
            return this;
        }

        /**
         * Sets the ranks. Default: one for each processor, and at most one for each query head,
         * with a thread each, which is faster than one rank of several threads.
         *
         * @param config the ranks, of the mode TENSOR
         * @return this builder
         */
        public Builder optConfig(ParallelConfig config) {
            parallel = config;
            return this;
        }

        /**
         * Sets how weights are held. Default: float32.
         *
         * @param type the type
         * @return this builder
         */
        public Builder optWeights(WeightType type) {
            weights = type;
            return this;
        }

        /**
         * Sets the most tokens of a text, prompt and new ones together, for which the cache has
         * room. Default: the positions of the model, at most 2,048.
         *
         * @param maxLength 2 or more
         * @return this builder
         */
        public Builder optMaxLength(int maxLength) {
            Errors.check(maxLength > 1, "The length must be 2 or more, not %s", maxLength);
            this.maxLength = maxLength;
            return this;
        }

        /**
         * Sets how many texts are generated at a time, of all threads. Default: 1.
         *
         * @param batch 1 or more
         * @return this builder
         */
        public Builder optBatch(int batch) {
            Errors.check(batch > 0, "The number of texts must be 1 or more, not %s", batch);
            this.batch = batch;
            return this;
        }

        /**
         * Lets process 0 of a job of several processes lead: any threads of it generate, while the
         * others call {@link Generator#follow}. All processes must set the same. Default: false,
         * for programs that make the same calls in all processes, from one thread.
         *
         * @param leader whether process 0 leads; of no effect in a single process
         * @return this builder
         */
        public Builder optLeader(boolean leader) {
            this.leader = leader;
            return this;
        }

        /**
         * Reads the weights.
         *
         * @return the generator
         * @throws IOException if a file is missing, is not complete, or cannot be read
         * @throws MalformedModelException if the folder is not that of a model that is implemented
         * @throws IllegalArgumentException if there are more ranks than heads, or the model does
         *     not fit
         */
        public Generator build() throws IOException, MalformedModelException {
            Errors.check(
                    (path == null) != (model == null),
                    "A Generator needs setPath or setModel, and not both");
            if (model != null) {
                Errors.check(
                        adapter == null, "A model has its own adapter: load it with optAdapter");
                return new Generator(this, model, false);
            }
            LanguageModel.Builder folder = LanguageModel.builder(Objects.requireNonNull(path));
            LanguageModel opened = (adapter == null ? folder : folder.optAdapter(adapter)).load();
            try {
                return new Generator(this, opened, true);
            } catch (IOException | RuntimeException e) {
                opened.close();
                throw e;
            }
        }
    }
}
