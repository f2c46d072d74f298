package io.djltp.cost;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.cut.Cut;
import io.djltp.sharding.ShardingStrategy;

/**
 * A parameter as the ranks hold it.
 *
 * @param parameter the parameter
 * @param name its name in the network
 * @param shape its shape over all ranks
 * @param strategy how it is cut, or {@code null} if every rank has the whole
 * @param cut which ranges of an axis each rank of the tensor-parallel group has, or {@code null}
 * @param hasGradient whether a rank keeps a gradient of it: it is trained, and not updated by its
 *     block itself
 */
public record ParameterCost(
        Parameter parameter,
        String name,
        Shape shape,
        ShardingStrategy strategy,
        Cut cut,
        boolean hasGradient) {

    /**
     * Returns whether it is cut.
     *
     * @return whether ranks have parts of it
     */
    public boolean isCut() {
        return cut != null;
    }

    /**
     * Returns the axis that is cut.
     *
     * @return the axis, or -1
     */
    public int getAxis() {
        return strategy == null ? -1 : strategy.axis(shape);
    }

    /**
     * Returns the shape of what a rank holds.
     *
     * @param tensorRank the rank's place in the tensor-parallel group
     * @return the shape of its shard or replica
     */
    public Shape getShape(int tensorRank) {
        return strategy == null ? shape : strategy.shardShape(shape, tensorRank, cut.getRanks());
    }
}
