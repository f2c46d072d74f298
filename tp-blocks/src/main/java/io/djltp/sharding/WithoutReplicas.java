package io.djltp.sharding;

import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;

import java.util.OptionalInt;

/** Cuts as another strategy, but refuses that several ranks get the same. */
final class WithoutReplicas extends ShardingStrategy {

    private final ShardingStrategy strategy;

    WithoutReplicas(ShardingStrategy strategy) {
        this.strategy = strategy;
    }

    /** {@inheritDoc} */
    @Override
    StrategyKind kind() {
        return strategy.kind();
    }

    /** {@inheritDoc} */
    @Override
    public OptionalInt shardedAxis() {
        return strategy.shardedAxis();
    }

    /** {@inheritDoc} */
    @Override
    public int axis(Shape shape) {
        return strategy.axis(shape);
    }

    /** {@inheritDoc} */
    @Override
    public Cut cut(Shape shape, int size) {
        Cut cut = strategy.cut(shape, size);
        if (!cut.isPartition()) {
            throw new IllegalArgumentException(
                    "the strategy "
                            + strategy
                            + " gives several ranks the same, which would count as often in what"
                            + " is summed over the ranks. Give each element to one rank");
        }
        return cut;
    }

    /** {@inheritDoc} */
    @Override
    public boolean equals(Object other) {
        return other instanceof WithoutReplicas
                && ((WithoutReplicas) other).strategy.equals(strategy);
    }

    /** {@inheritDoc} */
    @Override
    public int hashCode() {
        return 31 * strategy.hashCode();
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return strategy.toString();
    }
}
