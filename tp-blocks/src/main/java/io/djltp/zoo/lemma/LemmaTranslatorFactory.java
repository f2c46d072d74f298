package io.djltp.zoo.lemma;

import ai.djl.Model;
import ai.djl.modality.Classifications;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.modality.nlp.translator.TextClassificationServingTranslator;
import ai.djl.translate.ArgumentsUtil;
import ai.djl.translate.Translator;

import io.djltp.zoo.ServedTranslatorFactory;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/**
 * Makes translators for a lemmatiser: a word in, {@code String}; its likeliest lemmas out, {@code
 * Classifications}, or the likeliest one, {@code String}. Argument: {@code topk}, how many, 5 by
 * default. {@code Input} and {@code Output} are for DJL Serving.
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
                ? newTranslator(model, arguments, 1, found -> found.best().getClassName())
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
        int best = ArgumentsUtil.intValue(arguments, "topk", TOP_K);
        return newTranslator(model, arguments, best, found -> found);
    }

    private static <O> Translator<String, O> newTranslator(
            Model model, Map<String, ?> arguments, int best, Function<Classifications, O> answer)
            throws IOException {
        CharNGrams nGrams = LemmaBlockFactory.nGrams(arguments);
        List<String> lemmas = LemmaLabels.read(model.getModelPath());
        return new LemmaTranslator<>(nGrams, lemmas, best, answer);
    }
}
