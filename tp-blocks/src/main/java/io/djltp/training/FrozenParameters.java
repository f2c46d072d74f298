package io.djltp.training;

import ai.djl.nn.Parameter;

import io.djltp.parameters.ParallelParameters;
import io.djltp.rank.RankPool;

import java.util.BitSet;
import java.util.List;
import java.util.zip.CRC32C;

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
        if (isSaid()) {
            return; // as in nearly all steps
        }
        said = frozen();
        ranks.setTerms(said.isEmpty() ? "" : describe(said));
    }

    private boolean isSaid() {
        int size = all.size();
        for (int i = 0; i < size; i++) {
            if (said.get(i) == all.get(i).requiresGradient()) {
                return false;
            }
        }
        return true;
    }

    private BitSet frozen() {
        BitSet frozen = new BitSet(all.size());
        for (int i = 0; i < all.size(); i++) {
            frozen.set(i, !all.get(i).requiresGradient());
        }
        return frozen;
    }

    private String describe(BitSet frozen) {
        String last = parameters.nameOf(all.get(frozen.length() - 1));
        return describe(frozen, all.size(), last);
    }

    /**
     * Tells a set from any other in a few words: with its last one, because networks are frozen
     * from their beginning, and a checksum of the rest. (That of {@link BitSet#hashCode()} is the
     * same for parameters that are 32 apart.)
     */
    static String describe(BitSet frozen, int parameters, String last) {
        CRC32C checksum = new CRC32C();
        checksum.update(frozen.toByteArray());
        return "%d of %d parameters frozen, the last %s (checksum %x)"
                .formatted(frozen.cardinality(), parameters, last, checksum.getValue());
    }
}
