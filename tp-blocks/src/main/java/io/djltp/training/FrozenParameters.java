package io.djltp.training;

import ai.djl.nn.Parameter;

import io.djltp.parameters.ParallelParameters;
import io.djltp.rank.RankPool;

import java.util.BitSet;
import java.util.List;

/**
 * Which parameters are frozen, said with every collective operation of a job of several processes:
 * one that alone freezes what is cut calls the same operations as the others, and they would go on
 * without a part of the gradient.
 */
final class FrozenParameters {

    private final RankPool ranks;
    private final ParallelParameters parameters;
    private List<Parameter> all; // from the first pass on
    private BitSet said = new BitSet();

    FrozenParameters(RankPool ranks, ParallelParameters parameters) {
        this.ranks = ranks;
        this.parameters = parameters;
    }

    /** Says what is frozen now. All processes call it at the same places of a step. */
    void say() {
        if (!ranks.isDistributed()) {
            return;
        }
        if (all == null) {
            all = parameters.getAll();
        }
        BitSet frozen = new BitSet();
        for (int i = 0; i < all.size(); i++) {
            frozen.set(i, !all.get(i).requiresGradient());
        }
        if (!frozen.equals(said)) {
            ranks.setTerms(frozen.isEmpty() ? "" : describe(frozen));
            said = frozen;
        }
    }

    /**
     * The last one, because networks are frozen from their beginning; the number tells the rest.
     */
    private String describe(BitSet frozen) {
        return "%d of %d parameters frozen, the last %s (checksum %x)"
                .formatted(
                        frozen.cardinality(),
                        all.size(),
                        parameters.nameOf(all.get(frozen.length() - 1)),
                        frozen.hashCode());
    }
}
