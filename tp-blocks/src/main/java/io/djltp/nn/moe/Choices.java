package io.djltp.nn.moe;

import ai.djl.ndarray.NDArray;

import io.djltp.collective.Communicator;
import io.djltp.collective.GatheredNumbers;
import io.djltp.cut.Cut;

import java.util.Arrays;

/**
 * What the tokens of all ranks have chosen, in the order of the batch.
 *
 * @param routing the choices
 * @param kept which of them are kept
 */
record Choices(Routing routing, boolean[] kept) {

    /**
     * Puts the choices of all ranks together: one all-gather of k numbers a token, the expert of a
     * choice, or -1 - expert where it is dropped.
     *
     * @param group the ranks
     * @param like an array of the pass, whose manager is used
     * @param own the choices of this rank's tokens
     * @param kept which of them are kept
     * @param cut which tokens each rank has
     * @return the choices of all tokens
     */
    static Choices gather(Communicator group, NDArray like, Routing own, boolean[] kept, Cut cut) {
        long[] mine = new long[kept.length];
        Arrays.setAll(mine, i -> kept[i] ? own.chosen()[i] : -1 - own.chosen()[i]);
        long[] lengths =
                Arrays.stream(cut.getShardLengths()).map(tokens -> tokens * own.topK()).toArray();
        long[] all =
                GatheredNumbers.of(group, like.getManager(), mine, lengths, "MixtureOfExperts");
        int[] chosen = new int[all.length];
        boolean[] keptOfAll = new boolean[all.length];
        for (int i = 0; i < all.length; i++) {
            keptOfAll[i] = all[i] >= 0;
            chosen[i] = (int) (keptOfAll[i] ? all[i] : -1 - all[i]);
        }
        int tokens = (int) cut.getLength();
        return new Choices(new Routing(tokens, own.experts(), own.topK(), chosen, true), keptOfAll);
    }
}
