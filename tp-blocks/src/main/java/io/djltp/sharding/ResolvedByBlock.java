package io.djltp.sharding;

import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;

/** Stands for the strategies that a block of several weights chooses for each of them. */
final class ResolvedByBlock extends ShardingStrategy {

    static final ShardingStrategy TENSOR =
            new ResolvedByBlock(StrategyKind.TENSOR_PARALLEL, "tensorParallel");
    static final ShardingStrategy EXPERT =
            new ResolvedByBlock(StrategyKind.EXPERT_PARALLEL, "expertParallel");

    private final StrategyKind kind;
    private final String name;

    private ResolvedByBlock(StrategyKind kind, String name) {
        this.kind = kind;
        this.name = name;
    }

    /** {@inheritDoc} */
    @Override
    StrategyKind kind() {
        return kind;
    }

    /** {@inheritDoc} */
    @Override
    public int axis(Shape shape) {
        throw refusal(shape);
    }

    /** {@inheritDoc} */
    @Override
    public Cut cut(Shape shape, int size) {
        throw refusal(shape);
    }

    private IllegalArgumentException refusal(Shape shape) {
        return new IllegalArgumentException(
                "The strategy "
                        + name
                        + " stands for those that a block of several weights chooses for each of"
                        + " them, and has no cut of its own for a weight "
                        + shape
                        + ": give it to such a block, or a weight a strategy that cuts an axis,"
                        + " such as rowwise()");
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return name;
    }
}
