package io.djltp.parameters;

import ai.djl.ndarray.NDManager;
import ai.djl.nn.Parameter;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.DifferentCalls;
import io.djltp.collective.GatheredNumbers;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Compares the replicas of parameters, and of parts that several ranks have of those that are cut:
 * every rank computes a checksum of each, and all ranks see all of them. Replicas are updated by
 * each rank on its own, so that an operation that is not deterministic, a lost update or a broken
 * memory goes unseen otherwise.
 */
public final class DriftCheck {

    private static final String IN_STEP = "the comparison of replicas";
    private static final String AT_CLOSE = DifferentCalls.CLOSE + ", comparing replicas";

    private final RankPool ranks;
    private final ParallelParameters parameters;
    private long checked;

    /**
     * Creates the check.
     *
     * @param ranks the ranks
     * @param parameters what the ranks hold
     */
    public DriftCheck(RankPool ranks, ParallelParameters parameters) {
        this.ranks = ranks;
        this.parameters = parameters;
    }

    /**
     * Returns whether a step has been made since the replicas were compared.
     *
     * @param step the number of steps done
     * @return whether they may differ
     */
    public boolean isDue(long step) {
        return step > checked;
    }

    /**
     * Takes the replicas as they are for compared.
     *
     * @param step the number of steps that they come from
     */
    public void restart(long step) {
        checked = step;
    }

    /**
     * Compares the replicas on all ranks. All processes call it.
     *
     * @param step the number of steps done, for the error
     */
    public void run(long step) {
        checked = step;
        List<ReplicatedPart> replicated = replicated();
        if (ranks.getWorldSize() > 1 && !replicated.isEmpty()) {
            ranks.run(
                    context -> {
                        compare(context, replicated, step);
                        return null;
                    });
        }
    }

    /**
     * Compares what other processes have told. If they have drifted apart, the job ends. One
     * process may call it alone, so that it says nothing of {@link #isDue}, by which all of them
     * know whether they are to compare.
     *
     * @param step the number of steps done, for the error
     * @param all the checksums of all ranks
     */
    public void check(long step, long... all) {
        List<ReplicatedPart> replicated = replicated();
        ranks.run(
                context -> {
                    compare(all, replicated, step);
                    return null;
                });
    }

    /**
     * Returns the checksums of the replicas of all ranks, for {@link #check}, when the trainer is
     * closed. All processes call it.
     *
     * @return the checksums of all ranks, in their order
     */
    public long[] allChecksums() {
        List<ReplicatedPart> replicated = replicated();
        return replicated.isEmpty()
                ? new long[0]
                : ranks.run(context -> checksums(context, replicated, AT_CLOSE)).get(0);
    }

    /** Returns the checksums of the replicas of this process's ranks, from any thread. */
    long[] localChecksums() {
        List<ReplicatedPart> replicated = replicated();
        long[] sums = new long[replicated.size() * ranks.size()];
        for (int rank = 0; rank < ranks.size(); rank++) {
            for (int i = 0; i < replicated.size(); i++) {
                sums[rank * replicated.size() + i] =
                        replicated.get(i).checksum(parameters, ranks.getContext(rank));
            }
        }
        return sums;
    }

    private List<ReplicatedPart> replicated() {
        List<ReplicatedPart> replicated = new ArrayList<>();
        for (Parameter parameter : parameters.getTrained()) {
            replicated.addAll(ReplicatedPart.of(parameters, parameter, ranks.getWorldSize()));
        }
        return replicated;
    }

    private void compare(ParallelContext context, List<ReplicatedPart> replicated, long step) {
        compare(checksums(context, replicated, IN_STEP), replicated, step);
    }

    private long[] checksums(
            ParallelContext context, List<ReplicatedPart> replicated, String issuer) {
        long[] own = new long[replicated.size()];
        Arrays.setAll(own, i -> replicated.get(i).checksum(parameters, context));
        NDManager manager = parameters.getStore(context).getManager();
        return GatheredNumbers.of(context.getWorld(), manager, own, issuer);
    }

    private void compare(long[] all, List<ReplicatedPart> replicated, long step) {
        int parts = replicated.size();
        for (int part = 0; part < parts; part++) {
            int first = -1; // the first rank that has it
            for (int rank = 0; rank < all.length / parts; rank++) {
                long sum = all[rank * parts + part];
                if (sum == ReplicatedPart.NOT_HELD) {
                    continue;
                }
                first = first < 0 ? rank : first;
                if (sum != all[first * parts + part]) {
                    throw drifted(replicated.get(part), step, rank, first);
                }
            }
        }
    }

    private CollectiveException drifted(ReplicatedPart part, long step, int rank, int first) {
        return new CollectiveException(
                "after step "
                        + step
                        + " rank "
                        + rank
                        + " has other values of "
                        + part.describe(parameters)
                        + " than rank "
                        + first
                        + ": the replicas have drifted apart. Was a weight or a gradient changed"
                        + " outside of trainer.step(), such as by another trainer of the model?"
                        + " What the model shows is that of rank "
                        + first
                        + ". Do all processes iterate the same batches, change parameters alike,"
                        + " and give their optimizers the same settings and learning rates?");
    }
}
