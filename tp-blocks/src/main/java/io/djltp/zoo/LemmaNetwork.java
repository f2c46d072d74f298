package io.djltp.zoo;

import ai.djl.Model;
import ai.djl.modality.Classifications;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.modality.nlp.translator.TextClassificationServingTranslator;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.translate.ArgumentsUtil;
import ai.djl.translate.TranslateException;
import ai.djl.translate.Translator;
import ai.djl.translate.TranslatorContext;
import ai.djl.util.Pair;
import ai.djl.util.Preconditions;

import io.djltp.nn.ClassificationHead;
import io.djltp.nn.EmbeddingBag;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.Type;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import java.util.zip.CRC32;

/**
 * The network of the lemmatiser: the embeddings of the n-grams of a word are added up, the sum is
 * scaled to a fixed length, and a head turns it into one logit per lemma. Its factories are those
 * of a {@link ModelFolder} with the lemmas in {@value #LABELS}.
 *
 * <p>The head is any block from (batch, dim) to (batch, classes), such as {@link
 * ai.djl.nn.core.Linear}.
 */
public final class LemmaNetwork {

    /** The length of every feature vector. */
    public static final float FEATURE_LENGTH = 16f;

    /** The standard deviation of a head's first weights: small, so that all lemmas start alike. */
    public static final float HEAD_SIGMA = 0.01f;

    /** What is added to the square of a length before its root is taken. */
    public static final float EPSILON = 1e-6f;

    /** The name of the block that scales the sums. */
    public static final String NORMALIZE = "normalize";

    /**
     * The name of the file with the lemma of each class: one class a line, the code of the
     * language, a tab, the lemma.
     */
    public static final String LABELS = "lexicon.tsv";

    private static final List<String> FILES =
            List.of(ModelFolder.WEIGHTS, ModelFolder.PROPERTIES, LABELS);

    private LemmaNetwork() {}

    /**
     * Creates the part below the head.
     *
     * <ul>
     *   <li>input: int32 (batch, n-grams), as {@link CharNGrams} makes them
     *   <li>output: float32 (batch, dim), each row of length {@link #FEATURE_LENGTH}
     * </ul>
     *
     * @param rows the number of rows of the embedding table
     * @param dim the number of features
     * @return the block
     */
    public static SequentialBlock body(int rows, int dim) {
        EmbeddingBag embedding = new EmbeddingBag(rows, dim);
        embedding.setInitializer(new NormalInitializer(0.25f), Parameter.Type.WEIGHT);
        return new SequentialBlock()
                .add(embedding)
                .add(new LambdaBlock(LemmaNetwork::normalize, NORMALIZE));
    }

    /**
     * Sets how the weights of a head start.
     *
     * @param head the head
     */
    public static void initializeHead(Block head) {
        head.setInitializer(new NormalInitializer(HEAD_SIGMA), Parameter.Type.WEIGHT);
    }

    /**
     * Puts a head on the body.
     *
     * @param rows the number of rows of the embedding table
     * @param dim the number of features
     * @param head the head
     * @return the network
     */
    public static SequentialBlock create(int rows, int dim, Block head) {
        return body(rows, dim).add(head);
    }

    private static NDList normalize(NDList inputs) {
        NDArray features = inputs.singletonOrThrow();
        NDArray length = features.square().sum(new int[] {1}, true).add(EPSILON).sqrt();
        // not mul(number): DJL keeps a number in Java memory that may be gone when the gradient
        // needs it
        NDArray scale = length.zerosLike().add(FEATURE_LENGTH);
        return new NDList(features.div(length).mul(scale));
    }

    /** Returns the lemmas in the folder of a model, in the order of their classes. */
    static List<String> readLabels(Path folder) throws IOException {
        Path file = folder.resolve(LABELS);
        if (!Files.isRegularFile(file)) {
            throw new FileNotFoundException(
                    ("There is no %s in %s, which names the lemma of each class: copy the lexicon"
                                    + " of the trained model there")
                            .formatted(LABELS, folder));
        }
        List<String> lemmas = new ArrayList<>();
        for (String line : Files.readAllLines(file)) {
            int tab = line.indexOf('\t');
            if (tab < 0) {
                throw new IOException(
                        "%s, line %d: expected a language, a tab and a lemma"
                                .formatted(file, lemmas.size() + 1));
            }
            lemmas.add(line.substring(tab + 1));
        }
        return lemmas;
    }

    /** Returns which files of the English lemmatiser these are: others have another version. */
    static String getVersion() throws IOException {
        CRC32 sum = new CRC32();
        for (String name : FILES) {
            try (InputStream file = open(name)) {
                sum.update(file.readAllBytes());
            }
        }
        return Long.toHexString(sum.getValue());
    }

    /** Writes the {@link ModelFolder} of the English lemmatiser, which is in the jar. */
    static void writeFolder(Path folder) throws IOException {
        for (String name : FILES) {
            try (InputStream file = open(name)) {
                Files.copy(file, folder.resolve(name));
            }
        }
    }

    private static InputStream open(String name) {
        return LemmaNetwork.class.getResourceAsStream("lemma-en/" + name);
    }

    private static int positive(Map<String, ?> arguments, String name) {
        int value = ArgumentsUtil.intValue(arguments, name, 0);
        Preconditions.checkArgument(
                value > 0,
                "A lemmatiser needs the argument %s, 1 or more, as its model folder has it, not %s"
                        .formatted(name, arguments.get(name)));
        return value;
    }

    /**
     * Makes the network with a {@link ClassificationHead}, whose classes are cut over the ranks.
     *
     * <p>Arguments: {@code rows}, those of the embedding table, {@code limit}, the most n-grams of
     * a word, and {@code dim}, the features of a word. There are as many classes as lines in
     * {@value LemmaNetwork#LABELS}.
     */
    public static final class BlockFactory extends ParallelBlockFactory {

        private static final long serialVersionUID = 1L;

        /** Creates a factory. */
        public BlockFactory() {}

        /** {@inheritDoc} */
        @Override
        protected Block newNetwork(Path folder, Map<String, ?> arguments) throws IOException {
            return create(
                    positive(arguments, "rows"),
                    positive(arguments, "dim"),
                    ClassificationHead.builder().setUnits(readLabels(folder).size()).build());
        }

        /** {@inheritDoc} */
        @Override
        protected Shape[] getInputShapes(Map<String, ?> arguments) {
            return new Shape[] {new Shape(1, positive(arguments, "limit"))};
        }
    }

    /**
     * Makes translators: a word in, {@code String}; its likeliest lemmas out, {@code
     * Classifications}, or the likeliest one, {@code String}. Argument: {@code topk}, how many, 5
     * by default, at most as many as there are. {@code Input} and {@code Output} are for DJL
     * Serving.
     */
    public static final class TranslatorFactory implements ai.djl.translate.TranslatorFactory {

        private static final int TOP_K = 5;

        /** Creates a factory. */
        public TranslatorFactory() {}

        /** {@inheritDoc} */
        @Override
        public Set<Pair<Type, Type>> getSupportedTypes() {
            return Set.of(
                    new Pair<>(String.class, Classifications.class),
                    new Pair<>(String.class, String.class),
                    new Pair<>(Input.class, Output.class));
        }

        /** {@inheritDoc} */
        @Override
        @SuppressWarnings("unchecked")
        public <I, O> Translator<I, O> newInstance(
                Class<I> input, Class<O> output, Model model, Map<String, ?> arguments)
                throws TranslateException {
            CharNGrams nGrams =
                    new CharNGrams(positive(arguments, "rows"), positive(arguments, "limit"));
            List<String> lemmas;
            try {
                lemmas = readLabels(model.getModelPath());
            } catch (IOException e) {
                throw new TranslateException(e.getMessage(), e);
            }
            int classes = lemmas.size();
            int best = ArgumentsUtil.intValue(arguments, "topk", Math.min(TOP_K, classes));
            Preconditions.checkArgument(
                    best >= 1 && best <= classes,
                    "The argument topk is %d, and has to be a number of lemmas from 1 to %d"
                            .formatted(best, classes));
            if (output == String.class) {
                return (Translator<I, O>)
                        new LemmaTranslator<>(nGrams, lemmas, 1, it -> it.best().getClassName());
            }
            Translator<String, Classifications> translator =
                    new LemmaTranslator<>(nGrams, lemmas, best, it -> it);
            return (Translator<I, O>)
                    (input == Input.class
                            ? new TextClassificationServingTranslator(translator)
                            : translator);
        }
    }

    /**
     * A word in, its likeliest lemmas out, with their probabilities: the softmax of the logits of
     * all.
     */
    private record LemmaTranslator<O>(
            CharNGrams nGrams, List<String> lemmas, int best, Function<Classifications, O> answer)
            implements Translator<String, O> {

        /** {@inheritDoc} */
        @Override
        public NDList processInput(TranslatorContext context, String word) {
            return new NDList(context.getNDManager().create(nGrams.rowsOf(word)));
        }

        /** {@inheritDoc} No words are a batch of no rows, which DJL's batchifier cannot make. */
        @Override
        public NDList batchProcessInput(TranslatorContext context, List<String> words)
                throws Exception {
            Shape none = new Shape(0, nGrams.limit());
            return words.isEmpty()
                    ? new NDList(context.getNDManager().create(none, DataType.INT32))
                    : Translator.super.batchProcessInput(context, words);
        }

        /** {@inheritDoc} */
        @Override
        public O processOutput(TranslatorContext context, NDList output) {
            NDArray logits = output.singletonOrThrow(); // [classes]
            return answer.apply(new Classifications(lemmas, logits.softmax(0), best));
        }
    }
}
