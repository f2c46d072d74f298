package io.djltp.examples.plan;

import ai.djl.ndarray.types.Shape;

import io.djltp.examples.OptimizerName;
import io.djltp.zoo.minilm.MiniLm;

import java.util.Set;

/** The pretrained network of {@code tp embed}: a forward pass, nothing is trained. */
final class MiniLmModel implements PlannedModel {

    private static final int BATCH = 16;

    @Override
    public String getName() {
        return "minilm";
    }

    @Override
    public String getDescription() {
        return "all-MiniLM-L6-v2 of tp embed: the forward pass on a batch of texts, no training";
    }

    @Override
    public Set<String> getOptions() {
        return Set.of("--tokens");
    }

    @Override
    public int getBatch() {
        return BATCH;
    }

    @Override
    public OptimizerName getOptimizer() {
        return null;
    }

    /** Ids of word pieces, and the mask. */
    @Override
    public Planned create(PlanOptions options, int batch) {
        Shape ids = new Shape(batch, options.tokens);
        return new Planned(MiniLm.create(), new Shape[] {ids, ids}, null);
    }
}
