package io.djltp.zoo.minilm;

import ai.djl.Model;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.modality.nlp.translator.TextEmbeddingServingTranslator;
import ai.djl.translate.TranslateException;
import ai.djl.translate.Translator;
import ai.djl.translate.TranslatorFactory;
import ai.djl.util.Pair;

import io.djltp.zoo.ClosedWithModel;

import java.io.IOException;
import java.lang.reflect.Type;
import java.nio.file.Path;
import java.util.Map;
import java.util.Set;

/**
 * Makes translators for sentence embeddings: a text in, {@code String}; its embedding of length 1
 * out, {@code float[]}. {@code Input} and {@code Output} are for DJL Serving.
 */
public final class MiniLmTranslatorFactory implements TranslatorFactory {

    private static final Set<Pair<Type, Type>> TYPES =
            Set.of(new Pair<>(String.class, float[].class), new Pair<>(Input.class, Output.class));

    /** Creates a factory. */
    public MiniLmTranslatorFactory() {}

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
        EmbeddingTranslator translator;
        try {
            Path folder = model.getModelPath();
            WordPieces pieces = WordPieces.load(folder);
            ClosedWithModel.add(model, pieces);
            translator = new EmbeddingTranslator(pieces);
        } catch (IOException e) {
            throw new TranslateException(e.getMessage(), e);
        } catch (NoClassDefFoundError e) {
            throw new TranslateException(
                    "The tokenizer is not on the class path: add"
                            + " ai.djl.huggingface:tokenizers of the version of DJL",
                    e);
        }
        return (Translator<I, O>)
                (input == Input.class
                        ? new TextEmbeddingServingTranslator(translator)
                        : translator);
    }
}
