package io.djltp.examples.lemma;

import ai.djl.modality.Classifications;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.translate.NoBatchifyTranslator;
import ai.djl.translate.TranslatorContext;

import io.djltp.head.TopClasses;
import io.djltp.search.ClassSearch;
import io.djltp.zoo.lemma.CharNGrams;

import java.util.ArrayList;
import java.util.List;

/** Lets a DJL predictor of the network's body turn a word into its best lemmas. */
public final class LemmaTranslator implements NoBatchifyTranslator<String, Classifications> {

    private final CharNGrams nGrams;
    private final Lexicon lexicon;
    private final ClassSearch lemmas;
    private final int best;

    /**
     * Creates a translator.
     *
     * @param nGrams how words become rows of the embedding table
     * @param lexicon what the classes mean
     * @param lemmas the search for the best classes
     * @param best how many lemmas are wanted; if there are fewer, all are
     */
    public LemmaTranslator(CharNGrams nGrams, Lexicon lexicon, ClassSearch lemmas, int best) {
        this.nGrams = nGrams;
        this.lexicon = lexicon;
        this.lemmas = lemmas;
        this.best = Math.min(best, lexicon.size());
    }

    /** {@inheritDoc} */
    @Override
    public NDList processInput(TranslatorContext context, String word) {
        int[] rows = nGrams.rowsOf(word);
        return new NDList(context.getNDManager().create(rows, new Shape(1, rows.length)));
    }

    /** {@inheritDoc} */
    @Override
    public Classifications processOutput(TranslatorContext context, NDList output) {
        List<String> names = new ArrayList<>(best);
        List<Double> shares = new ArrayList<>(best);
        try (TopClasses top = lemmas.classify(output.singletonOrThrow(), best);
                NDArray probabilities = top.probabilities()) {
            float[] values = probabilities.toFloatArray();
            long[] classes = top.classes().toLongArray();
            for (int i = 0; i < best; i++) {
                names.add(lexicon.label((int) classes[i]));
                shares.add((double) values[i]);
            }
        }
        return new Classifications(names, shares);
    }
}
