package io.djltp.zoo;

import ai.djl.Model;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.translate.TranslateException;
import ai.djl.translate.Translator;
import ai.djl.translate.TranslatorFactory;
import ai.djl.util.Pair;

import java.io.IOException;
import java.lang.reflect.Type;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;

/**
 * Makes the translators of a model that takes texts: for programs from {@code String} to what it
 * answers, for DJL Serving from {@code Input} to {@code Output}. DJL finds a factory by the name of
 * its class, {@code translatorFactory} in {@code serving.properties}; it needs a public constructor
 * without parameters.
 */
public abstract class ServedTranslatorFactory implements TranslatorFactory {

    private final Set<Pair<Type, Type>> types = new HashSet<>();

    /**
     * Creates a factory.
     *
     * @param answers the classes of what programs can get for a text
     */
    protected ServedTranslatorFactory(Class<?>... answers) {
        types.add(new Pair<>(Input.class, Output.class));
        for (Class<?> answer : answers) {
            types.add(new Pair<>(String.class, answer));
        }
    }

    /**
     * Makes a translator for programs.
     *
     * @param answer the class of what it gives for a text, one of the constructor's
     * @param model the model
     * @param arguments the arguments of the model, with those of {@code serving.properties}
     * @return the translator
     * @throws IOException if a file of the model cannot be read
     * @throws TranslateException if it cannot be made for another reason
     */
    protected abstract Translator<String, ?> newTranslator(
            Class<?> answer, Model model, Map<String, ?> arguments)
            throws IOException, TranslateException;

    /**
     * Makes a translator for DJL Serving.
     *
     * @param model the model
     * @param arguments the arguments of the model
     * @return the translator
     * @throws IOException if a file of the model cannot be read
     * @throws TranslateException if it cannot be made for another reason
     */
    protected abstract Translator<Input, Output> newServingTranslator(
            Model model, Map<String, ?> arguments) throws IOException, TranslateException;

    /** {@inheritDoc} */
    @Override
    public final Set<Pair<Type, Type>> getSupportedTypes() {
        return Set.copyOf(types);
    }

    /** {@inheritDoc} */
    @Override
    @SuppressWarnings("unchecked")
    public final <I, O> Translator<I, O> newInstance(
            Class<I> input, Class<O> output, Model model, Map<String, ?> arguments)
            throws TranslateException {
        try {
            return (Translator<I, O>)
                    (input == Input.class
                            ? newServingTranslator(model, arguments)
                            : newTranslator(output, model, arguments));
        } catch (IOException e) {
            throw new TranslateException(e.getMessage(), e);
        }
    }
}
