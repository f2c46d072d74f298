package io.djltp.zoo.minilm;

import ai.djl.Model;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.modality.nlp.translator.TextEmbeddingServingTranslator;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.translate.TranslateException;
import ai.djl.translate.Translator;
import ai.djl.translate.TranslatorContext;

import io.djltp.zoo.ServedTranslatorFactory;

import java.io.IOException;
import java.util.List;
import java.util.Map;

/**
 * Makes translators for sentence embeddings: a text in, {@code String}; its embedding of length 1
 * out, {@code float[]}. {@code Input} and {@code Output} are for DJL Serving.
 */
public final class MiniLmTranslatorFactory extends ServedTranslatorFactory {

    /** Creates a factory. */
    public MiniLmTranslatorFactory() {
        super(float[].class);
    }

    /** {@inheritDoc} */
    @Override
    protected Translator<String, float[]> newTranslator(
            Class<?> answer, Model model, Map<String, ?> arguments)
            throws IOException, TranslateException {
        try {
            WordPieces pieces = WordPieces.load(model.getModelPath());
            // also where DJL forgets the model: it closes what its manager has
            model.getNDManager().attachInternal(NDManager.nextUid(), pieces);
            return new EmbeddingTranslator(pieces);
        } catch (NoClassDefFoundError e) {
            throw new TranslateException(
                    "The tokenizer is not on the class path: add"
                            + " ai.djl.huggingface:tokenizers of the version of DJL",
                    e);
        }
    }

    /** {@inheritDoc} */
    @Override
    protected Translator<Input, Output> newServingTranslator(Model model, Map<String, ?> arguments)
            throws IOException, TranslateException {
        return new TextEmbeddingServingTranslator(newTranslator(float[].class, model, arguments));
    }

    /** Texts in, embeddings out. The texts of a batch are filled up to the longest. */
    static final class EmbeddingTranslator implements Translator<String, float[]> {

        private final WordPieces pieces;

        EmbeddingTranslator(WordPieces pieces) {
            this.pieces = pieces;
        }

        /** {@inheritDoc} */
        @Override
        public NDList processInput(TranslatorContext context, String text) {
            WordPieces.Batch batch = pieces.cut(List.of(text));
            NDManager manager = context.getNDManager();
            return new NDList(manager.create(batch.ids()[0]), manager.create(batch.mask()[0]));
        }

        /** {@inheritDoc} */
        @Override
        public NDList batchProcessInput(TranslatorContext context, List<String> texts) {
            WordPieces.Batch batch = pieces.cut(texts);
            NDManager manager = context.getNDManager();
            return new NDList(manager.create(batch.ids()), manager.create(batch.mask()));
        }

        /** {@inheritDoc} */
        @Override
        public float[] processOutput(TranslatorContext context, NDList output) {
            return output.singletonOrThrow().toFloatArray(); // [384]
        }
    }
}
