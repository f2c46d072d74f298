package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

import io.djltp.collective.ReduceOp;
import io.djltp.rank.RankPool;
import io.djltp.torch.TensorView;
import io.djltp.training.ParallelTrainer;

/** What all processes of a job decide alike, although each sees its own clock and signals. */
final class LargestValue {

    private LargestValue() {}

    /**
     * Returns the largest value of all processes. All processes call it; one process alone
     * communicates nothing.
     *
     * @param trainer the trainer
     * @param values the values of this process, replaced by the largest ones
     */
    static double[] of(ParallelTrainer trainer, double... values) {
        RankPool ranks = trainer.getRanks();
        if (!ranks.isDistributed()) {
            return values;
        }
        NDManager manager = trainer.getManager();
        return ranks.run(
                        context -> {
                            try (NDManager scope = manager.newSubManager(context.getDevice());
                                    NDArray array = scope.create(values)) {
                                context.getWorld().setIssuer("CheckpointListener");
                                context.getWorld()
                                        .allReduce(TensorView.of(array), ReduceOp.MAX)
                                        .await();
                                return array.toDoubleArray();
                            }
                        })
                .get(0);
    }
}
