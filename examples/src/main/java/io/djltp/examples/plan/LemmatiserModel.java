package io.djltp.examples.plan;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;

import io.djltp.examples.HeadKind;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.train.TrainCommand;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.zoo.lemma.LemmaNetwork;

import java.util.Set;

/** The lemmatiser of {@code tp train}, with the German dictionary and the defaults. */
final class LemmatiserModel implements PlannedModel {

    private static final int GERMAN_LEMMAS = 120_658;
    private static final int DIM = 64;
    private static final int BATCH = 512;

    @Override
    public String getName() {
        return "lemmatiser";
    }

    @Override
    public String getDescription() {
        return "the network of tp train: a bag of n-grams, and a head with a class for each lemma";
    }

    @Override
    public Set<String> getOptions() {
        return Set.of("--classes", "--optimizer");
    }

    @Override
    public int getBatch() {
        return BATCH;
    }

    @Override
    public OptimizerName getOptimizer() {
        return OptimizerName.ADAGRAD;
    }

    @Override
    public Planned create(PlanOptions options, int batch) {
        int lemmas = options.classes == null ? GERMAN_LEMMAS : options.classes;
        Block head =
                HeadKind.SAMPLED
                        .builder(lemmas, HeadKind.defaultShare(lemmas), 1)
                        .optBatchShardedInput(true)
                        .build();
        return new Planned(
                LemmaNetwork.create(TrainCommand.tableRows(lemmas), DIM, head),
                new Shape[] {new Shape(batch, TrainCommand.N_GRAMS)},
                new VocabParallelCrossEntropyLoss());
    }
}
