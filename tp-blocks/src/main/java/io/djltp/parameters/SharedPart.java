package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.cut.ShardRange;
import io.djltp.torch.Autograd;

import java.util.List;

/**
 * What a rank's shard of a parameter has in common with those of some other ranks.
 *
 * @param group the rank's end of the group of these ranks
 * @param axis the axis that is cut
 * @param places where it lies in the shard
 */
@SuppressWarnings("try") // a scope is used by being open
record SharedPart(Communicator group, int axis, List<ShardRange> places) {

    /** Sums the part of a shard's gradient over the group, in place. */
    void sum(NDArray shard, String issuer) {
        try (Autograd.GradMode mode = Autograd.gradMode(false);
                NDManager scope = shard.getManager().newSubManager();
                NDArray gradient = Autograd.gradientOrZeros(shard)) {
            gradient.attach(scope);
            group.setIssuer(issuer);
            if (places.size() == 1 && places.get(0).length() == shard.getShape().get(axis)) {
                group.allReduce(gradient, ReduceOp.SUM);
                return;
            }
            NDList parts = new NDList();
            places.forEach(place -> parts.add(gradient.get(index(place))));
            NDArray joined =
                    places.size() == 1 ? parts.head().duplicate() : NDArrays.concat(parts, axis);
            group.allReduce(joined, ReduceOp.SUM);
            long at = 0;
            for (ShardRange place : places) {
                NDIndex from = index(new ShardRange(at, place.length()));
                gradient.set(index(place), joined.get(from));
                at += place.length();
            }
        }
    }

    /** Returns a range of the axis. */
    private NDIndex index(ShardRange range) {
        NDIndex index = new NDIndex();
        for (int i = 0; i < axis; i++) {
            index = index.addAllDim();
        }
        return index.addSliceDim(range.start(), range.end());
    }
}
