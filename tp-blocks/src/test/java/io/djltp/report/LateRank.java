package io.djltp.report;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.parameters.RankParameterStore;
import io.djltp.rank.ParallelContext;

/** Hands its input on; rank 1 takes its time. */
final class LateRank extends AbstractBlock {

    private final int millis;

    LateRank(int millis) {
        this.millis = millis;
    }

    @Override
    protected NDList forwardInternal(
            ParameterStore store,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        ParallelContext context = RankParameterStore.contextOf(store);
        if (context != null && context.getRank() == 1 && millis > 0) {
            try {
                Thread.sleep(millis);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }
        return inputs;
    }

    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return inputShapes;
    }
}
