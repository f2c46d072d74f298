package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

import io.djltp.rank.RankPool;
import io.djltp.torch.HostReads;
import io.djltp.torch.RandomDraws;
import io.djltp.torch.TensorView;

/** What rank 0 decides for all, because the processes could see it differently. */
final class RankZero {

    private RankZero() {}

    /** Returns the value of the process of rank 0. All processes call it. */
    static double valueOf(RankPool ranks, NDManager manager, double value) {
        if (!ranks.isDistributed()) {
            return value;
        }
        return ranks.run(
                        context -> {
                            try (NDManager scope = manager.newSubManager(context.getDevice());
                                    NDArray agreed = scope.create(value)) {
                                context.getWorld().setIssuer("ParallelTrainer.fromRankZero");
                                context.getWorld().broadcast(TensorView.of(agreed), 0).await();
                                return HostReads.number(agreed);
                            }
                        })
                .get(0);
    }

    /** Lets the random numbers of all ranks follow from libtorch's generator on rank 0. */
    static void seed(RankPool ranks, NDManager manager, boolean randomCheck) {
        // 53 bits, which a double carries; before the values of parameters are drawn
        double seed = valueOf(ranks, manager, RandomDraws.fingerprint() >>> 11);
        for (int i = 0; i < ranks.size(); i++) {
            ranks.getContext(i).getRandom().begin((long) seed, randomCheck);
        }
    }
}
