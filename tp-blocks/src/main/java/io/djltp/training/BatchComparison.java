package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.GatheredNumbers;
import io.djltp.internal.torch.Checksum;
import io.djltp.parameters.ParallelParameters;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool;

import java.util.Arrays;
import java.util.function.Consumer;

/**
 * Compares the batches of the processes by checksums, in the steps after which replicas are
 * compared. The replicas do not tell: they stay alike where gradients are summed, whatever the
 * batches were, and labels that differ give each rank the loss of none of the batches.
 *
 * <p>Of what is evaluated, the data is compared: the first batch after a step, and those after it
 * in the same intervals as steps. Its labels are not, as one process alone may compute a loss of
 * what all have evaluated.
 */
final class BatchComparison {

    private final ParallelConfig config;
    private final RankPool ranks;
    private final ParallelParameters parameters;
    private final TrainingSteps steps;
    private long evaluatedAfter = -1; // the step
    private long evaluations; // since then

    BatchComparison(
            ParallelConfig config,
            RankPool ranks,
            ParallelParameters parameters,
            TrainingSteps steps) {
        this.config = config;
        this.ranks = ranks;
        this.parameters = parameters;
        this.steps = steps;
    }

    /**
     * Compares what a forward pass in training is given, if that is due in its step.
     *
     * @param data the data of this process's batch
     * @param labels its labels, or {@code null} if they come with the loss
     * @return what compares labels that come with the loss, and were not given here
     */
    Consumer<NDList> compare(NDList data, NDList labels) {
        long step = steps.count() + 1;
        if (!ranks.isDistributed() || !config.isBatchCheckDue(step)) {
            return others -> {};
        }
        String where = "in step " + step;
        gather(where, "the comparison of batches", data, labels);
        return others -> gather(where, "the comparison of labels", null, others);
    }

    /**
     * Compares what is evaluated, if that is due.
     *
     * @param data the data of this process's batch
     */
    void compareEvaluated(NDList data) {
        if (!ranks.isDistributed()) {
            return;
        }
        long step = steps.count();
        evaluations = step == evaluatedAfter ? evaluations + 1 : 1;
        evaluatedAfter = step;
        boolean first = evaluations == 1 && config.isBatchCheckDue(0); // every so many, from 0
        if (first || config.isBatchCheckDue(evaluations)) {
            String where = "in evaluation batch " + evaluations + " after step " + step;
            gather(where, "the comparison of evaluation batches", data, null);
        }
    }

    private void gather(String where, String issuer, NDList data, NDList labels) {
        long[] own = {checksum(data), checksum(labels)};
        ranks.run(
                context -> {
                    compare(all(context, own, issuer), own.length, where);
                    return null;
                });
    }

    private long[] all(ParallelContext context, long[] own, String issuer) {
        NDManager manager = parameters.getStore(context).getManager();
        return GatheredNumbers.of(context.getWorld(), manager, own, issuer);
    }

    private static void compare(long[] all, int kinds, String where) {
        for (int i = 0; i < all.length; i++) {
            if (all[i] != all[i % kinds]) {
                throw new CollectiveException(
                        ("%s rank %d has %s of another batch than rank 0: let all processes"
                                        + " iterate the same batches, in the same order")
                                .formatted(
                                        where,
                                        i / kinds,
                                        i % kinds == 0 ? "the data" : "the labels"));
            }
        }
    }

    /** Returns 0 for what comes at another time. */
    private static long checksum(NDList arrays) {
        long sum = 0;
        for (NDArray array : arrays == null ? new NDList() : arrays) {
            int shape = Arrays.hashCode(array.getShape().getShape());
            sum = 31 * (31 * sum + shape) + Checksum.of(array);
        }
        return sum;
    }
}
