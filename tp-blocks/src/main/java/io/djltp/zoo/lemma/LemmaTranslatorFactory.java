package io.djltp.zoo.lemma;

import ai.djl.Model;
import ai.djl.modality.Classifications;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.modality.nlp.translator.TextClassificationServingTranslator;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.translate.ArgumentsUtil;
import ai.djl.translate.Translator;
import ai.djl.translate.TranslatorContext;

import io.djltp.zoo.ServedTranslatorFactory;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.function.IntUnaryOperator;

/**
 * Makes translators for a lemmatiser: a word in, {@code String}; its likeliest lemmas out, {@code
 * Classifications}, or the likeliest one, {@code String}. Argument: {@code topk}, how many, 5 by
 * default, at most as many as there are. {@code Input} and {@code Output} are for DJL Serving.
 */
public final class LemmaTranslatorFactory extends ServedTranslatorFactory {

    private static final int TOP_K = 5;

    /** Creates a factory. */
    public LemmaTranslatorFactory() {
        super(Classifications.class, String.class);
    }

    /** {@inheritDoc} */
    @Override
    protected Translator<String, ?> newTranslator(
            Class<?> answer, Model model, Map<String, ?> arguments) throws IOException {
        return answer == String.class
                ? newTranslator(
                        model, arguments, classes -> 1, found -> found.best().getClassName())
                : newTranslator(model, arguments);
    }

    /** {@inheritDoc} */
    @Override
    protected Translator<Input, Output> newServingTranslator(Model model, Map<String, ?> arguments)
            throws IOException {
        return new TextClassificationServingTranslator(newTranslator(model, arguments));
    }

    private static Translator<String, Classifications> newTranslator(
            Model model, Map<String, ?> arguments) throws IOException {
        return newTranslator(model, arguments, classes -> best(arguments, classes), found -> found);
    }

    private static int best(Map<String, ?> arguments, int classes) {
        String given = ArgumentsUtil.stringValue(arguments, "topk");
        if (given == null) {
            return Math.min(TOP_K, classes);
        }
        if (given.matches("[1-9]\\d{0,8}(\\.0)?")) { // JSON has numbers of one kind
            int best = (int) Double.parseDouble(given);
            if (best <= classes) {
                return best;
            }
        }
        throw new IllegalArgumentException(
                "The argument topk is "
                        + given
                        + ", and has to be a number of lemmas from 1 to "
                        + classes);
    }

    private static <O> Translator<String, O> newTranslator(
            Model model,
            Map<String, ?> arguments,
            IntUnaryOperator best,
            Function<Classifications, O> answer)
            throws IOException {
        CharNGrams nGrams = LemmaBlockFactory.nGrams(arguments);
        List<String> lemmas = LemmaLabels.read(model.getModelPath());
        return new LemmaTranslator<>(nGrams, lemmas, best.applyAsInt(lemmas.size()), answer);
    }

    /**
     * A word in, its likeliest lemmas out, with their probabilities: the softmax of the logits of
     * all.
     */
    private static final class LemmaTranslator<O> implements Translator<String, O> {

        private final CharNGrams nGrams;
        private final List<String> lemmas;
        private final int best;
        private final Function<Classifications, O> answer;

        LemmaTranslator(
                CharNGrams nGrams,
                List<String> lemmas,
                int best,
                Function<Classifications, O> answer) {
            this.nGrams = nGrams;
            this.lemmas = lemmas;
            this.best = best;
            this.answer = answer;
        }

        /** {@inheritDoc} */
        @Override
        public NDList processInput(TranslatorContext context, String word) {
            return new NDList(context.getNDManager().create(nGrams.rowsOf(word)));
        }

        /** {@inheritDoc} No words are a batch of no rows, which DJL's batchifier cannot make. */
        @Override
        public NDList batchProcessInput(TranslatorContext context, List<String> words)
                throws Exception {
            return words.isEmpty()
                    ? new NDList(
                            context.getNDManager()
                                    .create(new Shape(0, nGrams.limit()), DataType.INT32))
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
