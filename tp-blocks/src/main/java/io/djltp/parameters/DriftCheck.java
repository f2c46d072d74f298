package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.Communicator;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool;
import io.djltp.torch.Checksum;
import io.djltp.torch.TensorView;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Compares the replicas of the parameters, and on a mesh those of the shards: every rank computes a
 * checksum of each, and all ranks see all of them. Replicas are updated by each rank on its own, so
 * that an operation that is not deterministic, a lost update or a broken memory goes unseen
 * otherwise. So does a process that iterates other batches than the others.
 */
public final class DriftCheck {

    private final RankPool ranks;
    private final ParallelParameters parameters;
    private final DeviceMesh mesh;
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
        mesh = ranks.getContext(0).getMesh();
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
     * Compares the replicas on all ranks. All processes call it.
     *
     * @param step the number of steps done, for the error
     */
    public void run(long step) {
        check(step, gather());
    }

    /**
     * Returns the checksums of all ranks, in their order, to be compared later. All processes call
     * it.
     *
     * @return the checksums
     */
    public long[] gather() {
        List<Parameter> compared = compared();
        if (ranks.getWorldSize() == 1 || compared.isEmpty()) {
            return new long[0];
        }
        return ranks.run(
                        context -> {
                            long[] own = new long[compared.size()];
                            Arrays.setAll(own, i -> checksum(context, compared.get(i)));
                            NDManager manager = parameters.getStore(context).getManager();
                            return gather(context, manager, own, "the comparison of replicas");
                        })
                .get(0);
    }

    /**
     * Compares checksums. If the replicas have drifted apart, the job ends.
     *
     * @param step the number of steps done, for the error
     * @param all the checksums of all ranks
     */
    public void check(long step, long... all) {
        checked = step;
        List<Parameter> compared = compared();
        ranks.run(
                context -> {
                    compare(all, compared, step);
                    return null;
                });
    }

    /** Returns the checksums of the replicas of this process's ranks, from any thread. */
    long[] localChecksums() {
        List<Parameter> compared = compared();
        long[] sums = new long[compared.size() * ranks.size()];
        for (int rank = 0; rank < ranks.size(); rank++) {
            for (int i = 0; i < compared.size(); i++) {
                sums[rank * compared.size() + i] =
                        checksum(ranks.getContext(rank), compared.get(i));
            }
        }
        return sums;
    }

    private List<Parameter> compared() {
        List<Parameter> compared = new ArrayList<>();
        for (Parameter parameter : parameters.getTrained()) {
            if (parameters.getStrategy(parameter) == null || isReplica(ranks.getWorldSize() - 1)) {
                compared.add(parameter);
            }
        }
        return compared;
    }

    /** Returns whether the shards of a rank are replicas of those of another. */
    private boolean isReplica(int rank) {
        return mesh.getFirstReplica(rank) != rank;
    }

    /** Returns the rank that must have the same values. */
    private int reference(int rank, Parameter parameter) {
        return parameters.getStrategy(parameter) == null ? 0 : mesh.getFirstReplica(rank);
    }

    /**
     * Compares the batches of the processes. The replicas do not tell: they stay alike where
     * gradients are summed, whatever the batches were.
     *
     * @param step the number of the step that begins, for the error
     * @param data the data of this process's batch
     * @param labels its labels, or {@code null}
     */
    public void runOnBatch(long step, NDList data, NDList labels) {
        if (!ranks.isDistributed()) {
            return;
        }
        long[] own = {checksum(data), labels == null ? 0 : checksum(labels)};
        ranks.run(
                context -> {
                    compareBatches(context, own, step);
                    return null;
                });
    }

    private void compareBatches(ParallelContext context, long[] own, long step) {
        NDManager manager = parameters.getStore(context).getManager();
        long[] all = gather(context, manager, own, "the comparison of batches");
        for (int i = 0; i < all.length; i++) {
            if (all[i] != all[i % own.length]) {
                throw new CollectiveException(
                        "in step "
                                + step
                                + " rank "
                                + i / own.length
                                + " has "
                                + (i % own.length == 0 ? "the data" : "the labels")
                                + " of another batch than rank 0: let all processes iterate the"
                                + " same batches, in the same order");
            }
        }
    }

    private void compare(long[] all, List<Parameter> compared, long step) {
        for (int i = 0; i < all.length; i++) {
            int rank = i / compared.size();
            Parameter parameter = compared.get(i % compared.size());
            int reference = reference(rank, parameter);
            if (all[i] != all[reference * compared.size() + i % compared.size()]) {
                throw new CollectiveException(
                        "after step "
                                + step
                                + " rank "
                                + rank
                                + " has other values of "
                                + parameters.nameOf(parameter)
                                + " "
                                + parameter.getShape()
                                + " than rank "
                                + reference
                                + ": the replicas have drifted apart. Was a weight or a gradient"
                                + " changed outside of trainer.step()? What the model shows is that"
                                + " of rank "
                                + reference
                                + ". Do all processes iterate the same batches, and change"
                                + " parameters alike?");
            }
        }
    }

    /** Returns the numbers of all ranks, in their order. */
    static long[] gather(ParallelContext context, NDManager manager, long[] own, String issuer) {
        Communicator world = context.getWorld();
        world.setIssuer(issuer);
        long[] shares = new long[world.getSize()];
        Arrays.fill(shares, own.length);
        try (NDArray mine = manager.create(own);
                NDArray gathered =
                        manager.create(new Shape(own.length * shares.length), DataType.INT64)) {
            world.allGather(TensorView.of(mine), TensorView.of(gathered), shares).await();
            return gathered.toLongArray();
        }
    }

    private static long checksum(NDList arrays) {
        long sum = 0;
        for (NDArray array : arrays) {
            int shape = Arrays.hashCode(array.getShape().getShape());
            sum = 31 * (31 * sum + shape) + Checksum.of(array);
        }
        return sum;
    }

    private long checksum(ParallelContext context, Parameter parameter) {
        return Checksum.of(parameters.getStore(context).getValue(parameter, null, true));
    }
}
