package io.djltp.zoo.lemma;

import ai.djl.modality.Classifications;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.translate.Translator;
import ai.djl.translate.TranslatorContext;

import java.util.List;
import java.util.function.Function;

/**
 * A word in, its likeliest lemmas out, with their probabilities: the softmax of the logits of all.
 */
final class LemmaTranslator<O> implements Translator<String, O> {

    private final CharNGrams nGrams;
    private final List<String> lemmas;
    private final int best;
    private final Function<Classifications, O> answer;

    LemmaTranslator(
            CharNGrams nGrams, List<String> lemmas, int best, Function<Classifications, O> answer) {
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
                        context.getNDManager().create(new Shape(0, nGrams.limit()), DataType.INT32))
                : Translator.super.batchProcessInput(context, words);
    }

    /** {@inheritDoc} */
    @Override
    public O processOutput(TranslatorContext context, NDList output) {
        NDArray logits = output.singletonOrThrow(); // [classes]
        return answer.apply(new Classifications(lemmas, logits.softmax(0), best));
    }
}
