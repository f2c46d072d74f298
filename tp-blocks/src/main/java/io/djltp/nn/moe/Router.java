package io.djltp.nn.moe;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.core.Linear;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.internal.Errors;
import io.djltp.internal.collective.GatheredNumbers;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TorchOperations;

import org.jspecify.annotations.Nullable;

import java.util.Arrays;

/**
 * What a router has computed of some tokens: probabilities of the experts in float32, the choices,
 * and the weight of each choice.
 *
 * @param logits the logits, [tokens, experts], float32
 * @param probabilities their softmax
 * @param routing the choices
 * @param weights the weight of each choice, [tokens * k], in the type of the tokens
 */
record Router(NDArray logits, NDArray probabilities, Routing routing, NDArray weights) {

    /**
     * Routes tokens.
     *
     * @param x the tokens, [tokens, features]
     * @param weight the router's weight, [experts, features]
     * @param bias the router's bias, [experts], or {@code null}
     * @param topK the number of choices
     * @param normalized whether the weights of a token's choices add up to 1, dropped ones included
     * @return the result, attached to the manager of the tokens
     */
    static Router of(
            NDArray x, NDArray weight, @Nullable NDArray bias, int topK, boolean normalized) {
        int experts = (int) weight.getShape().get(0);
        long tokens = x.getShape().get(0);
        NDArray logits =
                TorchOperations.toFloat32(Linear.linear(x, weight, bias).singletonOrThrow());
        NDArray probabilities = logits.softmax(1);
        Routing routing = Routing.of(HostReads.floats(logits), experts, topK);
        // the numbers stay open as long as the graph
        NDArray places = TokenDispatch.numbers(x, routing.places());
        NDArray flat = probabilities.reshape(tokens * experts);
        NDArray weights = TorchOperations.takeRows(flat, places).reshape(tokens, topK);
        if (normalized) {
            weights = weights.div(weights.sum(new int[] {1}, true));
        }
        weights = TorchOperations.inTypeOf(weights.reshape(tokens * topK), x, weights.getManager());
        return new Router(logits, probabilities, routing, weights);
    }

    /**
     * Which experts the tokens of a rank have chosen: the {@code k} with the largest logits, the
     * larger first, and of equal ones that with the lower number.
     *
     * <p>It is worked out on the host, where the numbers of rows that are sent have to be known
     * anyway.
     *
     * @param tokens the number of tokens
     * @param experts the number of experts
     * @param topK the number of choices of each
     * @param chosen the expert of each choice, that of token n and choice j at {@code n * topK + j}
     * @param valid whether all logits are numbers
     */
    record Routing(int tokens, int experts, int topK, int[] chosen, boolean valid) {

        /** Chooses by the logits, those of one token after those of another. */
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

        /** Returns how many tokens have expert e as choice j, at {@code j * experts + e}. */
        long[] counts() {
            long[] counts = new long[topK * experts];
            for (int i = 0; i < chosen.length; i++) {
                counts[i % topK * experts + chosen[i]]++;
            }
            return counts;
        }

        /** Returns where the probability of each choice is in [tokens, experts]. */
        long[] places() {
            long[] places = new long[chosen.length];
            Arrays.setAll(places, i -> (long) (i / topK) * experts + chosen[i]);
            return places;
        }
    }

    /**
     * What tokens have chosen, and what of it is kept.
     *
     * @param routing the choices
     * @param kept which of them are kept
     */
    record Choices(Routing routing, boolean[] kept) {

        /**
         * Puts the choices of all ranks together: one all-gather of k numbers a token, the expert
         * of a choice, or -1 - expert where it is dropped.
         *
         * @param group the ranks
         * @param manager the manager of what is sent
         * @param cut which tokens each rank has
         * @return the choices of all tokens, in the order of the batch
         */
        Choices ofAllRanks(Communicator group, NDManager manager, Cut cut) {
            long[] mine = new long[kept.length];
            int[] own = routing.chosen();
            Arrays.setAll(mine, i -> kept[i] ? own[i] : -1 - own[i]);
            int topK = routing.topK();
            long[] lengths =
                    Arrays.stream(cut.getShardLengths()).map(tokens -> tokens * topK).toArray();
            long[] all = GatheredNumbers.of(group, manager, mine, lengths, "MixtureOfExperts");
            int[] chosen = new int[all.length];
            boolean[] keptOfAll = new boolean[all.length];
            for (int i = 0; i < all.length; i++) {
                keptOfAll[i] = all[i] >= 0;
                chosen[i] = (int) (keptOfAll[i] ? all[i] : -1 - all[i]);
            }
            int tokens = (int) cut.getLength();
            return new Choices(
                    new Routing(tokens, routing.experts(), topK, chosen, true), keptOfAll);
        }
    }

    /**
     * How many tokens of each rank have chosen each expert, and how many of them it takes.
     *
     * <p>An expert takes {@code ceil(factor * tokens * k / experts)} tokens of the whole batch:
     * first choices before second ones, and of the same choice those that come first in the batch,
     * as in GShard. Which tokens are dropped depends on the whole batch, and not on how it is cut.
     *
     * @param counts those of each rank whose tokens are others, in the order of the batch
     * @param tokens the number of tokens of all of them
     * @param experts the number of experts
     * @param topK the number of choices
     * @param factor the capacity factor, or infinite
     */
    record TokenCounts(long[][] counts, long tokens, int experts, int topK, double factor) {

        /**
         * Counts the tokens of all ranks: one all-gather of {@code k * experts + 2} numbers, or
         * none where a rank has all tokens.
         *
         * @param group the ranks that have other tokens, or {@code null}
         * @param manager the manager of what is sent
         * @param own the choices of this rank's tokens
         * @param factor the capacity factor, or infinite
         * @return the counts
         * @throws IllegalArgumentException on all ranks, if one has logits that are not numbers
         */
        static TokenCounts gather(
                @Nullable Communicator group, NDManager manager, Routing own, double factor) {
            int size = own.topK() * own.experts();
            long[] mine = Arrays.copyOf(own.counts(), size + 2);
            mine[size] = own.tokens();
            mine[size + 1] = own.valid() ? 0 : 1;
            long[] all =
                    group == null
                            ? mine
                            : GatheredNumbers.of(group, manager, mine, "MixtureOfExperts");
            long[][] counts = new long[all.length / mine.length][];
            long tokens = 0;
            for (int i = 0; i < counts.length; i++) {
                int start = i * mine.length;
                counts[i] = Arrays.copyOfRange(all, start, start + size);
                tokens += all[start + size];
                if (all[start + size + 1] > 0) {
                    throw Errors.argument(
                            "The router of a MixtureOfExperts of %s experts has logits that are not"
                                    + " a number (NaN or infinity)%s: look for NaN in its input and"
                                    + " its weight, or lower the learning rate",
                            own.experts(), counts.length > 1 ? ", from the rows of rank " + i : "");
                }
            }
            return new TokenCounts(counts, tokens, own.experts(), own.topK(), factor);
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
            double most = Math.ceil(factor * tokens * topK / experts);
            long capacity = most >= Long.MAX_VALUE ? Long.MAX_VALUE : (long) most;
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
}
