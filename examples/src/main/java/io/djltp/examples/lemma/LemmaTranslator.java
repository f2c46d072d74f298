package io.djltp.examples.lemma;

import ai.djl.modality.Classifications;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.translate.NoBatchifyTranslator;
import ai.djl.translate.TranslatorContext;

import java.util.ArrayList;
import java.util.List;

/** Lets an ordinary DJL predictor turn a word into its best lemmas. */
public final class LemmaTranslator implements NoBatchifyTranslator<String, Classifications> {

    private final CharNGrams nGrams;
    private final Lexicon lexicon;
    private final int best;

    /**
     * Creates a translator.
     *
     * @param nGrams how words become rows of the embedding table
     * @param lexicon what the classes mean
     * @param best how many lemmas are wanted
     */
    public LemmaTranslator(CharNGrams nGrams, Lexicon lexicon, int best) {
        this.nGrams = nGrams;
        this.lexicon = lexicon;
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
        NDArray probabilities = output.singletonOrThrow().flatten().softmax(0);
        NDList top = probabilities.topK(best, 0, true, true);
        float[] values = top.get(0).toFloatArray();
        long[] classes = top.get(1).toType(DataType.INT64, false).toLongArray();
        List<String> names = new ArrayList<>(best);
        List<Double> shares = new ArrayList<>(best);
        for (int i = 0; i < best; i++) {
            names.add(lexicon.label((int) classes[i]));
            shares.add((double) values[i]);
        }
        return new Classifications(names, shares);
    }
}
