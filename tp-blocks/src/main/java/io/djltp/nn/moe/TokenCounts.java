package io.djltp.nn.moe;

import ai.djl.ndarray.NDManager;

import io.djltp.collective.Communicator;
import io.djltp.collective.GatheredNumbers;

import java.util.Arrays;

/**
 * How many tokens of each rank have chosen each expert, and how many of them it takes.
 *
 * <p>An expert takes {@code ceil(factor * tokens * k / experts)} tokens of the whole batch: first
 * choices before second ones, and of the same choice those that come first in the batch, as in
 * GShard. Which tokens are dropped depends on the whole batch, and not on how it is cut.
 */
final class TokenCounts {

    private final int experts;
    private final int topK;
    private final long[][] counts; // by rank, see Routing.counts
    private final long tokens; // of all ranks
    private final long capacity;

    /**
     * Creates the counts.
     *
     * @param counts those of each rank whose tokens are others, in the order of the batch
     * @param tokens the number of tokens of all of them
     * @param experts the number of experts
     * @param topK the number of choices
     * @param factor the capacity factor, or infinite
     */
    TokenCounts(long[][] counts, long tokens, int experts, int topK, double factor) {
        this.counts = counts;
        this.tokens = tokens;
        this.experts = experts;
        this.topK = topK;
        double most = Math.ceil(factor * tokens * topK / experts);
        capacity = most >= Long.MAX_VALUE ? Long.MAX_VALUE : (long) most;
    }

    /**
     * Counts the tokens of all ranks: one all-gather of {@code k * experts + 2} numbers, or none
     * where a rank has all tokens.
     *
     * @param group the ranks that have other tokens, or {@code null}
     * @param manager the manager of what is sent
     * @param own the choices of this rank's tokens
     * @param factor the capacity factor, or infinite
     * @return the counts
     * @throws IllegalArgumentException on all ranks, if one has logits that are not numbers
     */
    static TokenCounts gather(Communicator group, NDManager manager, Routing own, double factor) {
        int size = own.topK() * own.experts();
        long[] mine = Arrays.copyOf(own.counts(), size + 2);
        mine[size] = own.tokens();
        mine[size + 1] = own.valid() ? 0 : 1;
        long[] all =
                group == null ? mine : GatheredNumbers.of(group, manager, mine, "MixtureOfExperts");
        long[][] counts = new long[all.length / mine.length][];
        long tokens = 0;
        for (int i = 0; i < counts.length; i++) {
            int start = i * mine.length;
            counts[i] = Arrays.copyOfRange(all, start, start + size);
            tokens += all[start + size];
            if (all[start + size + 1] > 0) {
                throw new IllegalArgumentException(
                        "The router of a MixtureOfExperts of "
                                + own.experts()
                                + " experts has logits that are not a number (NaN or infinity)"
                                + (counts.length > 1 ? ", from the rows of rank " + i : "")
                                + ": look for NaN in its input and its weight, or lower the"
                                + " learning rate");
            }
        }
        return new TokenCounts(counts, tokens, own.experts(), own.topK(), factor);
    }

    /** Returns the number of tokens of all ranks. */
    long getTokens() {
        return tokens;
    }

    /** Returns the share of all choices that each expert has, before any is dropped. */
    double[] shares() {
        double[] shares = new double[experts];
        for (long[] rank : counts) {
            for (int i = 0; i < rank.length; i++) {
                shares[i % experts] += (double) rank[i] / (tokens * topK);
            }
        }
        return shares;
    }

    /** Returns how many of a rank's choices are kept, at {@code j * experts + e}. */
    private long[] keptChoices(int rank) {
        long[] kept = new long[topK * experts];
        for (int e = 0; e < experts; e++) {
            long before = 0;
            for (int j = 0; j < topK; j++) {
                for (int r = 0; r < counts.length; r++) {
                    long count = counts[r][j * experts + e];
                    if (r == rank) {
                        kept[j * experts + e] = Math.max(0, Math.min(count, capacity - before));
                    }
                    before += count;
                }
            }
        }
        return kept;
    }

    /** Returns how many tokens of each rank each expert takes, by rank. */
    long[][] kept() {
        long[][] kept = new long[counts.length][experts];
        for (int r = 0; r < kept.length; r++) {
            long[] choices = keptChoices(r);
            for (int i = 0; i < choices.length; i++) {
                kept[r][i % experts] += choices[i];
            }
        }
        return kept;
    }

    /** Returns which choices of a rank's tokens are kept, in the order of its routing. */
    boolean[] isKept(Routing routing, int rank) {
        long[] left = keptChoices(rank);
        boolean[] kept = new boolean[routing.chosen().length];
        for (int j = 0; j < topK; j++) {
            for (int i = j; i < kept.length; i += topK) {
                kept[i] = left[j * experts + routing.chosen()[i]]-- > 0;
            }
        }
        return kept;
    }
}
