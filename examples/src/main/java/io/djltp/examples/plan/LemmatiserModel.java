package io.djltp.examples.plan;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.loss.Loss;

import io.djltp.examples.HeadKind;
import io.djltp.examples.lemma.LemmaNetwork;
import io.djltp.examples.train.TrainCommand;
import io.djltp.loss.VocabParallelCrossEntropyLoss;

/** The lemmatiser of {@code tp train}, with the German dictionary and the defaults. */
final class LemmatiserModel implements PlannedModel {

    private static final int GERMAN_LEMMAS = 120_658;
    private static final int DIM = 64;

    @Override
    public String getName() {
        return "lemmatiser";
    }

    @Override
    public String getDescription() {
        return "the network of tp train: a bag of n-grams, and a head with a class for each lemma";
    }

    @Override
    public Block create(Integer classes) {
        int lemmas = classes == null ? GERMAN_LEMMAS : classes;
        Block head =
                HeadKind.SAMPLED
                        .builder(lemmas, HeadKind.defaultShare(lemmas), 1)
                        .optBatchShardedInput(true)
                        .build();
        return LemmaNetwork.create(TrainCommand.tableRows(lemmas), DIM, head);
    }

    @Override
    public Shape[] inputs(int batch) {
        return new Shape[] {new Shape(batch, TrainCommand.N_GRAMS)};
    }

    @Override
    public Loss loss() {
        return new VocabParallelCrossEntropyLoss();
    }
}
