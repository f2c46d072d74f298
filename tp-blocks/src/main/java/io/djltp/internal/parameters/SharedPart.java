package io.djltp.internal.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.index.NDIndex;

import io.djltp.collective.Communicator;
import io.djltp.cut.ShardRange;

/**
 * What a rank's shard of a parameter has in common with those of some other ranks: a range of the
 * axis that is cut.
 *
 * @param group the rank's end of the group of these ranks
 * @param axis the axis that is cut
 * @param place where the range lies in the shard
 */
public record SharedPart(Communicator group, int axis, ShardRange place) {

    /**
     * Returns the part of a shard, or of its gradient.
     *
     * @param shard the array, in the shape of the shard; gradients are not recorded
     * @return a view, which the caller closes
     */
    public NDArray of(NDArray shard) {
        return range(shard, axis, place);
    }

    static NDArray range(NDArray array, int axis, ShardRange range) {
        NDIndex index = new NDIndex();
        for (int i = 0; i < axis; i++) {
            index = index.addAllDim();
        }
        return array.get(index.addSliceDim(range.start(), range.end()));
    }
}
