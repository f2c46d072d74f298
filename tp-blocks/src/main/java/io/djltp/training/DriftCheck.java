package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.bridge.Checksum;
import io.djltp.bridge.TensorView;
import io.djltp.collective.CollectiveException;
import io.djltp.collective.Communicator;
import io.djltp.mesh.ParallelContext;
import io.djltp.mesh.RankPool;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Compares the replicas of the parameters that are not cut: every rank computes a checksum of each,
 * and all ranks see all of them. Replicas are updated by each rank on its own, so that an operation
 * that is not deterministic, a lost update or a broken memory goes unseen otherwise. So does a
 * process that iterates other batches than the others.
 */
final class DriftCheck {

    private final RankPool ranks;
    private final ParallelParameters parameters;

    DriftCheck(RankPool ranks, ParallelParameters parameters) {
        this.ranks = ranks;
        this.parameters = parameters;
    }

    /**
     * Compares the replicas on all ranks.
     *
     * @param step the number of steps done, for the error
     */
    void run(long step) {
        List<Parameter> replicated = new ArrayList<>();
        for (Parameter parameter : parameters.getTrained()) {
            if (parameters.getStrategy(parameter) == null) {
                replicated.add(parameter);
            }
        }
        if (ranks.getWorldSize() > 1 && !replicated.isEmpty()) {
            ranks.run(
                    context -> {
                        compare(context, replicated, step);
                        return null;
                    });
        }
    }

    /**
     * Compares the batches of the processes. The replicas do not tell: they stay alike where
     * gradients are summed, whatever the batches were.
     *
     * @param step the number of the step that begins, for the error
     * @param data the data of this process's batch
     * @param labels its labels, or {@code null}
     */
    void runOnBatch(long step, NDList data, NDList labels) {
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
        long[] all = gather(context, own, "the comparison of batches");
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

    private void compare(ParallelContext context, List<Parameter> replicated, long step) {
        long[] own = new long[replicated.size()];
        Arrays.setAll(own, i -> checksum(context, replicated.get(i)));
        long[] all = gather(context, own, "the comparison of replicas");
        for (int i = 0; i < all.length; i++) {
            if (all[i] != all[i % own.length]) {
                Parameter parameter = replicated.get(i % own.length);
                throw new CollectiveException(
                        "after step "
                                + step
                                + " rank "
                                + i / own.length
                                + " has other values of "
                                + parameters.nameOf(parameter)
                                + " "
                                + parameter.getShape()
                                + " than rank 0: the replicas have drifted apart. Do all processes"
                                + " iterate the same batches, and change parameters alike?");
            }
        }
    }

    /** Returns the numbers of all ranks, in their order. */
    private long[] gather(ParallelContext context, long[] own, String issuer) {
        Communicator world = context.getWorld();
        world.setIssuer(issuer);
        long[] shares = new long[world.getSize()];
        Arrays.fill(shares, own.length);
        NDManager manager = parameters.getStore(context).getManager();
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
