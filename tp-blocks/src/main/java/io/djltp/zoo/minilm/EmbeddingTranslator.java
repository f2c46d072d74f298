package io.djltp.zoo.minilm;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.translate.Translator;
import ai.djl.translate.TranslatorContext;

import java.util.List;

/** Texts in, embeddings out. The texts of a batch are filled up to the longest. */
final class EmbeddingTranslator implements Translator<String, float[]> {

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
