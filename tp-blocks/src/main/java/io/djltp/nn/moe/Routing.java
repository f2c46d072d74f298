package io.djltp.nn.moe;

import java.util.Arrays;

/**
 * Which experts the tokens of a rank have chosen: the {@code k} with the largest logits, the larger
 * first, and of equal ones that with the lower number.
 *
 * <p>It is worked out on the host, where the numbers of rows that are sent have to be known anyway.
 *
 * @param tokens the number of tokens
 * @param experts the number of experts
 * @param topK the number of choices of each
 * @param chosen the expert of each choice, that of token n and choice j at {@code n * topK + j}
 * @param valid whether all logits are numbers
 */
record Routing(int tokens, int experts, int topK, int[] chosen, boolean valid) {

    /**
     * Chooses.
     *
     * @param logits the logits, those of one token after those of another
     * @param experts the number of experts
     * @param topK the number of choices
     * @return the choices
     */
    static Routing of(float[] logits, int experts, int topK) {
        int tokens = logits.length / experts;
        int[] chosen = new int[tokens * topK];
        boolean valid = true;
        for (float logit : logits) {
            valid &= !Float.isNaN(logit) && logit != Float.POSITIVE_INFINITY;
        }
        boolean[] taken = new boolean[experts];
        for (int n = 0; n < tokens; n++) {
            Arrays.fill(taken, false);
            for (int j = 0; j < topK; j++) {
                int best = -1;
                for (int e = 0; e < experts; e++) {
                    boolean better =
                            best < 0 || logits[n * experts + e] > logits[n * experts + best];
                    if (!taken[e] && better) {
                        best = e;
                    }
                }
                taken[best] = true;
                chosen[n * topK + j] = best;
            }
        }
        return new Routing(tokens, experts, topK, chosen, valid);
    }

    /**
     * Counts the choices.
     *
     * @return how many tokens have each expert as their j-th choice, at {@code j * experts + e}
     */
    long[] counts() {
        long[] counts = new long[topK * experts];
        for (int i = 0; i < chosen.length; i++) {
            counts[i % topK * experts + chosen[i]]++;
        }
        return counts;
    }

    /**
     * Returns where the probabilities of the choices lie.
     *
     * @return for each choice its place in [tokens, experts]
     */
    long[] places() {
        long[] places = new long[chosen.length];
        Arrays.setAll(places, i -> (long) (i / topK) * experts + chosen[i]);
        return places;
    }
}
