package io.djltp.examples.plan;

import ai.djl.ndarray.types.Shape;

import io.djltp.examples.OptimizerName;
import io.djltp.examples.lm.CharacterText;
import io.djltp.examples.lm.LmNetwork;
import io.djltp.loss.VocabParallelCrossEntropyLoss;

import java.io.IOException;
import java.util.Set;

/** The language model of {@code tp lm}, with its options and defaults. */
final class LmModel implements PlannedModel {

    private static final int BATCH = 16;

    @Override
    public String getName() {
        return "lm";
    }

    @Override
    public String getDescription() {
        return "the language model of tp lm: grouped queries, gated MLPs, RMS norms, and the"
                + " embedding again as the head";
    }

    @Override
    public Set<String> getOptions() {
        return Set.of(
                "--layers",
                "--width",
                "--heads",
                "--kv-heads",
                "--context",
                "--sequence-parallel",
                "--optimizer");
    }

    @Override
    public int getBatch() {
        return BATCH;
    }

    @Override
    public OptimizerName getOptimizer() {
        return OptimizerName.ADAM;
    }

    @Override
    public Planned create(PlanOptions options, int batch) throws IOException {
        options.sizes.check();
        int characters = CharacterText.read().vocabulary();
        return new Planned(
                LmNetwork.create(options.sizes, characters, options.sequenceParallel),
                new Shape[] {LmNetwork.inputShape(batch, options.sizes)},
                new VocabParallelCrossEntropyLoss());
    }
}
