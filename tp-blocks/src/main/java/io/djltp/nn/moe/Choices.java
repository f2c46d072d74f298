package io.djltp.nn.moe;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.torch.HostReads;
import io.djltp.torch.TensorView;

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
        group.setIssuer("MixtureOfExperts");
        long[] all;
        try (NDManager scope = like.getManager().newSubManager()) {
            NDArray sent =
                    mine.length == 0 // of which DJL would make a scalar
                            ? scope.create(new Shape(0), DataType.INT64)
                            : scope.create(mine);
            Shape shape = new Shape(cut.getLength() * own.topK());
            NDArray received = scope.create(shape, DataType.INT64);
            group.allGather(TensorView.of(sent), TensorView.of(received), lengths).await();
            all = HostReads.longs(received);
        }
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
