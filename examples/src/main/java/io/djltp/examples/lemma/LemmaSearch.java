package io.djltp.examples.lemma;

import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.modality.Classifications;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.translate.NoBatchifyTranslator;
import ai.djl.translate.Translator;
import ai.djl.translate.TranslatorContext;

import io.djltp.head.TopClasses;
import io.djltp.search.ClassSearch;
import io.djltp.zoo.CharNGrams;
import io.djltp.zoo.LemmaNetwork;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * A trained network taken apart to answer questions: the body, for ordinary DJL predictors that
 * turn words into features, and the head as a search, which finds the best lemmas for features
 * without computing a probability for each of them.
 */
public final class LemmaSearch implements AutoCloseable {

    private final Model body;
    private final ClassSearch lemmas;

    /**
     * Takes a network apart. It keeps its parameters, and must be closed after this.
     *
     * @param network the network, of {@link LemmaNetwork#create} with a linear head
     */
    public LemmaSearch(Model network) {
        List<Block> blocks = network.getBlock().getChildren().values();
        int last = blocks.size() - 1;
        lemmas = ClassSearch.of(blocks.get(last));
        body = Model.newInstance(network.getName() + " body", network.getNDManager().getDevice());
        body.setBlock(new SequentialBlock().addAll(blocks.subList(0, last)));
    }

    /**
     * Returns a predictor whose output, before the translator gets it, is the features.
     *
     * @param translator what goes in and comes out
     * @param <I> the input
     * @param <O> the output
     * @return the predictor, to be closed by the caller
     */
    public <I, O> Predictor<I, O> newPredictor(Translator<I, O> translator) {
        return body.newPredictor(translator);
    }

    /**
     * Returns a predictor that turns a word into its best lemmas.
     *
     * @param nGrams how words become rows of the embedding table
     * @param lexicon what the classes mean
     * @param most how many lemmas are wanted; if there are fewer, all are
     * @return the predictor, to be closed by the caller
     */
    public Predictor<String, Classifications> newPredictor(
            CharNGrams nGrams, Lexicon lexicon, int most) {
        int best = Math.min(most, lexicon.size());
        return newPredictor(
                new NoBatchifyTranslator<>() {
                    @Override
                    public NDList processInput(TranslatorContext context, String word) {
                        int[] rows = nGrams.rowsOf(word);
                        Shape shape = new Shape(1, rows.length);
                        return new NDList(context.getNDManager().create(rows, shape));
                    }

                    @Override
                    public Classifications processOutput(TranslatorContext context, NDList output) {
                        try (TopClasses top = lemmas.classify(output.singletonOrThrow(), best);
                                NDArray probabilities = top.probabilities()) {
                            List<Double> shares = new ArrayList<>();
                            for (float value : probabilities.toFloatArray()) {
                                shares.add((double) value);
                            }
                            List<String> names =
                                    Arrays.stream(top.classes().toLongArray())
                                            .mapToObj(each -> lexicon.label((int) each))
                                            .toList();
                            return new Classifications(names, shares);
                        }
                    }
                });
    }

    /**
     * Returns the search for the best lemmas.
     *
     * @return the search
     */
    public ClassSearch getLemmas() {
        return lemmas;
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        lemmas.close();
        body.close();
    }
}
