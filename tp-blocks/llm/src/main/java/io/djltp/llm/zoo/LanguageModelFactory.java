package io.djltp.llm.zoo;

import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.inference.streaming.IteratorBytesSupplier;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.modality.nlp.generate.CausalLMOutput;
import ai.djl.ndarray.BytesSupplier;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.nn.BlockFactory;
import ai.djl.translate.NoBatchifyTranslator;
import ai.djl.translate.Translator;
import ai.djl.translate.TranslatorContext;
import ai.djl.translate.TranslatorFactory;
import ai.djl.util.JsonUtils;
import ai.djl.util.Pair;

import io.djltp.internal.Errors;
import io.djltp.llm.Embedder;
import io.djltp.llm.GenerationOptions;
import io.djltp.llm.Generator;
import io.djltp.llm.ModelConfig;
import io.djltp.llm.WeightType;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;

import java.io.IOException;
import java.io.Reader;
import java.lang.reflect.Type;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;

/**
 * Makes the block and the translators of a Hugging Face folder. {@link LanguageModelZooProvider}
 * uses it; DJL and DJL Serving also find it by a {@code serving.properties} in the folder:
 *
 * <pre>
 * engine=PyTorch
 * blockFactory=io.djltp.llm.zoo.LanguageModelFactory
 * translatorFactory=io.djltp.llm.zoo.LanguageModelFactory
 * option.hasParameter=false
 * option.tensor_parallel_degree=2
 * </pre>
 *
 * <table>
 * <caption>Types</caption>
 * <tr><th>input</th><th>output</th><th>prediction</th></tr>
 * <tr><td>{@code String}</td><td>{@code String}</td><td>the text that follows</td></tr>
 * <tr><td>{@code String}</td><td>{@code IteratorBytesSupplier}</td><td>its pieces in UTF-8 by
 * {@code streamingPredict}, each of whole characters</td></tr>
 * <tr><td>{@code String}</td><td>{@code float[]}</td><td>the vector of the text, of an
 * encoder</td></tr>
 * <tr><td>{@code Input}</td><td>{@code Output}</td><td>for DJL Serving: a text, or {@code
 * {"inputs": text, "parameters": {"max_new_tokens": 50}}}; the answer is {@code {"generated_text":
 * text}}, streamed as text, or of an encoder the numbers of the vector</td></tr>
 * <tr><td>{@code NDList}</td><td>{@code CausalLMOutput}</td><td>{@link Generator#forward}, for DJL's
 * {@code TextGenerator}: greedy, beam and contrastive search; {@code batch} is best the number of
 * texts times that of beams or candidates</td></tr>
 * </table>
 *
 * <table>
 * <caption>Options, also as arguments of the model</caption>
 * <tr><th>option</th><th>value (default)</th></tr>
 * <tr><td>{@code model_id}</td><td>the folder, for {@link LanguageModelZooProvider}</td></tr>
 * <tr><td>{@code tensor_parallel_degree}</td><td>the ranks, or {@code max} for one per processor
 * ({@code max}; 1 for encoders)</td></tr>
 * <tr><td>{@code max_new_tokens}</td><td>the most tokens of a text, if a request does not say it
 * (128)</td></tr>
 * <tr><td>{@code weights}</td><td>a {@link WeightType} ({@code float32})</td></tr>
 * <tr><td>{@code max_length}</td><td>{@link Generator.Builder#optMaxLength}</td></tr>
 * <tr><td>{@code batch}</td><td>{@link Generator.Builder#optBatch} (1)</td></tr>
 * </table>
 *
 * <p>The parameters of a request are {@code max_new_tokens}, {@code temperature}, {@code top_k},
 * {@code top_p}, {@code min_p}, {@code repetition_penalty}, {@code seed} and {@code stop}, a list
 * of strings.
 */
public final class LanguageModelFactory implements BlockFactory, TranslatorFactory {

    static final String FOLDER = "model_id";

    private static final long serialVersionUID = 1L;

    private static final String DEGREE = "tensor_parallel_degree";
    private static final String MAX_TOKENS = "max_new_tokens";
    private static final String WEIGHTS = "weights";
    private static final String MAX_LENGTH = "max_length";
    private static final String BATCH = "batch";
    private static final Set<String> OWN =
            Set.of(FOLDER, DEGREE, MAX_TOKENS, WEIGHTS, MAX_LENGTH, BATCH);
    private static final Set<String> OF_DJL = Set.of("hasParameter", "modelName");

    /** Creates a factory. */
    public LanguageModelFactory() {}

    /** Throws IllegalArgumentException if an option is not known. */
    static void checkOptions(Set<String> names) {
        for (String name : names) {
            Errors.check(
                    OWN.contains(name) || OF_DJL.contains(name),
                    "The option %s is not known. Use one of %s",
                    name,
                    new TreeSet<>(OWN));
        }
    }

    /**
     * {@inheritDoc}
     *
     * @throws IOException if the folder is not that of a model that is implemented
     * @throws IllegalArgumentException if an option is not known or has a wrong value
     */
    @Override
    public Block newBlock(Model model, Path modelPath, Map<String, ?> arguments)
            throws IOException {
        try {
            Map<String, Object> options = options(modelPath);
            options.putAll(arguments);
            LanguageModelBlock block = open(modelPath, options);
            // also where DJL forgets the model: it closes what its manager has
            model.getNDManager().attachInternal(NDManager.nextUid(), block);
            return block;
        } catch (MalformedModelException e) {
            model.close();
            throw new IOException(e.getMessage(), e);
        } catch (IOException | RuntimeException e) {
            model.close();
            throw e;
        }
    }

    private static Map<String, Object> options(Path folder) throws IOException {
        Map<String, Object> options = new HashMap<>();
        Path file = folder.resolve("serving.properties");
        if (Files.isRegularFile(file)) {
            Properties properties = new Properties();
            try (Reader reader = Files.newBufferedReader(file)) {
                properties.load(reader);
            }
            for (String name : properties.stringPropertyNames()) {
                if (name.startsWith("option.")) {
                    options.put(name.substring("option.".length()), properties.getProperty(name));
                }
            }
            checkOptions(options.keySet());
        }
        return options;
    }

    private static LanguageModelBlock open(Path folder, Map<String, Object> options)
            throws IOException, MalformedModelException {
        ModelConfig config = ModelConfig.read(folder);
        boolean max = "max".equals(options.get(DEGREE));
        if (config.isEncoder()) {
            int most = Math.min(Runtime.getRuntime().availableProcessors(), config.getHeads());
            int ranks = max ? most : number(options, DEGREE, 1);
            return new LanguageModelBlock(Embedder.load(folder, config(ranks)));
        }
        Generator.Builder builder = Generator.builder().setPath(folder);
        if (!max && options.containsKey(DEGREE)) {
            builder.optConfig(config(number(options, DEGREE, 1)));
        }
        if (options.containsKey(WEIGHTS)) {
            builder.optWeights(WeightType.of(options.get(WEIGHTS).toString()));
        }
        if (options.containsKey(MAX_LENGTH)) {
            builder.optMaxLength(number(options, MAX_LENGTH, 0));
        }
        int tokens = number(options, MAX_TOKENS, Integer.MAX_VALUE); // before the weights are read
        Generator generator = builder.optBatch(number(options, BATCH, 1)).build();
        GenerationOptions defaults = generator.getDefaults();
        return new LanguageModelBlock(
                generator,
                options.containsKey(MAX_TOKENS)
                        ? defaults.toBuilder().optMaxTokens(tokens).build()
                        : defaults);
    }

    private static ParallelConfig config(int ranks) {
        boolean many = ranks <= Runtime.getRuntime().availableProcessors() && ranks > 1;
        ParallelConfig.Builder builder =
                ParallelConfig.builder().setMode(ParallelMode.TENSOR).setRanks(ranks);
        return many ? builder.optThreadsPerRank(1).build() : builder.build();
    }

    private static int number(Map<String, Object> options, String name, int byDefault) {
        Object value = options.getOrDefault(name, byDefault);
        try {
            int number = Integer.parseInt(value.toString().trim());
            if (number > 0) {
                return number;
            }
        } catch (NumberFormatException e) {
            // said below
        }
        throw Errors.argument("The option %s must be a number, 1 or more, not %s", name, value);
    }

    @Override
    public Set<Pair<Type, Type>> getSupportedTypes() {
        return Set.of(
                new Pair<>(String.class, String.class),
                new Pair<>(String.class, IteratorBytesSupplier.class),
                new Pair<>(String.class, float[].class),
                new Pair<>(NDList.class, CausalLMOutput.class),
                new Pair<>(Input.class, Output.class));
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalArgumentException if the model has no such output
     */
    @Override
    @SuppressWarnings("unchecked")
    public <I, O> Translator<I, O> newInstance(
            Class<I> input, Class<O> output, Model model, Map<String, ?> arguments) {
        Errors.check(
                model.getBlock() instanceof LanguageModelBlock,
                "The block is not of %s. Name it as blockFactory, too",
                LanguageModelFactory.class.getName());
        LanguageModelBlock block = (LanguageModelBlock) model.getBlock();
        boolean vectors = output == float[].class;
        if (input != Input.class && vectors != block.isEncoder()) {
            model.close(); // DJL forgets it
            throw Errors.argument(
                    "The model in %s is %s. Use setTypes(String.class, %s.class)",
                    model.getModelPath(),
                    vectors ? "no encoder" : "an encoder",
                    vectors ? "String" : "float[]");
        }
        Translator<?, ?> translator;
        if (vectors) {
            translator = TextTranslator.of(LanguageModelBlock::request, NDArray::toFloatArray);
        } else if (output == CausalLMOutput.class) {
            translator = new CausalTranslator();
        } else if (output == String.class) {
            translator = TextTranslator.of(LanguageModelBlock::request, LanguageModelBlock::text);
        } else if (output == IteratorBytesSupplier.class) {
            translator =
                    new TextTranslator<>(
                            LanguageModelBlock::request,
                            array -> supplier(List.of(LanguageModelBlock.text(array)).iterator()),
                            LanguageModelFactory::supplier);
        } else {
            translator =
                    new TextTranslator<>(
                            LanguageModelFactory::request,
                            block.isEncoder()
                                    ? array -> json(array.toFloatArray())
                                    : array ->
                                            json(
                                                    Map.of(
                                                            "generated_text",
                                                            LanguageModelBlock.text(array))),
                            pieces -> {
                                Output all = new Output();
                                all.add(supplier(pieces));
                                return all;
                            });
        }
        return (Translator<I, O>) translator;
    }

    private static final class CausalTranslator
            implements NoBatchifyTranslator<NDList, CausalLMOutput> {

        @Override
        public NDList processInput(TranslatorContext context, NDList input) {
            return input;
        }

        @Override
        public CausalLMOutput processOutput(TranslatorContext context, NDList output) {
            int last = output.size() - 1;
            return new CausalLMOutput(output.head(), output.get(last), output.subNDList(1, last));
        }
    }

    private static IteratorBytesSupplier supplier(Iterator<String> pieces) {
        return new IteratorBytesSupplier(
                new Iterator<>() {
                    @Override
                    public boolean hasNext() { // without waiting for the next piece
                        return pieces.hasNext();
                    }

                    @Override
                    public BytesSupplier next() {
                        return BytesSupplier.wrap(pieces.next());
                    }
                });
    }

    private static String request(Input input) {
        BytesSupplier data = input.getData();
        Errors.check(data != null, "The request is empty. Send a text, or {\"inputs\": text}");
        String text = data.getAsString().strip();
        return text.startsWith("{") ? text : LanguageModelBlock.request(text);
    }

    private static Output json(Object value) {
        Output output = new Output();
        output.addProperty("Content-Type", "application/json");
        output.add(BytesSupplier.wrap(JsonUtils.GSON.toJson(value)));
        return output;
    }
}
