package io.djltp.examples.lemma;

import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.translate.Translator;

import io.djltp.search.ClassSearch;
import io.djltp.zoo.lemma.LemmaNetwork;

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
