package io.djltp.zoo.lemma;

import ai.djl.Model;
import ai.djl.modality.Classifications;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.modality.nlp.translator.TextClassificationServingTranslator;
import ai.djl.translate.ArgumentsUtil;
import ai.djl.translate.TranslateException;
import ai.djl.translate.Translator;
import ai.djl.translate.TranslatorFactory;
import ai.djl.util.Pair;

import java.io.IOException;
import java.lang.reflect.Type;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Makes translators for a lemmatiser: a word in, {@code String}; its likeliest lemmas out, {@code
 * Classifications}, or the likeliest one, {@code String}. Argument: {@code topk}, how many, 5 by
 * default. {@code Input} and {@code Output} are for DJL Serving.
 */
public final class LemmaTranslatorFactory implements TranslatorFactory {

    private static final int TOP_K = 5;

    private static final Set<Pair<Type, Type>> TYPES =
            Set.of(
                    new Pair<>(String.class, Classifications.class),
                    new Pair<>(String.class, String.class),
                    new Pair<>(Input.class, Output.class));

    /** Creates a factory. */
    public LemmaTranslatorFactory() {}

    /** {@inheritDoc} */
    @Override
    public Set<Pair<Type, Type>> getSupportedTypes() {
        return TYPES;
    }

    /** {@inheritDoc} */
    @Override
    @SuppressWarnings("unchecked")
    public <I, O> Translator<I, O> newInstance(
            Class<I> input, Class<O> output, Model model, Map<String, ?> arguments)
            throws TranslateException {
        CharNGrams nGrams = LemmaBlockFactory.nGrams(arguments);
        List<String> lemmas;
        try {
            lemmas = LemmaLabels.read(model.getModelPath());
        } catch (IOException e) {
            throw new TranslateException(e.getMessage(), e);
        }
        if (output == String.class) {
            return (Translator<I, O>)
                    new LemmaTranslator<>(nGrams, lemmas, 1, found -> found.best().getClassName());
        }
        LemmaTranslator<Classifications> translator =
                new LemmaTranslator<>(
                        nGrams,
                        lemmas,
                        ArgumentsUtil.intValue(arguments, "topk", TOP_K),
                        found -> found);
        return (Translator<I, O>)
                (input == Input.class
                        ? new TextClassificationServingTranslator(translator)
                        : translator);
    }
}
