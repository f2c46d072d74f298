package io.djltp.sharding;

import java.util.OptionalInt;

/**
 * What kind of {@link ShardingStrategy} it is, by the names of MAX ({@code is_rowwise} is {@link
 * #isRowwise()}). Strategies that do the same are of the same kind, however they were made: {@code
 * axiswise(0)} is row-wise.
 */
public abstract class NamedStrategy {

    /** Creates a strategy. */
    NamedStrategy() {}

    /** Returns the kind. */
    StrategyKind kind() {
        return StrategyKind.OTHER;
    }

    /**
     * Returns the axis that is cut, as it was given: a negative one counts from the last.
     *
     * @return the axis, or none where nothing is cut, or a block resolves the strategy
     */
    public OptionalInt shardedAxis() {
        return OptionalInt.empty();
    }

    /**
     * Returns whether every rank has the whole.
     *
     * @return whether nothing is cut
     */
    public boolean isReplicated() {
        return false;
    }

    /**
     * Returns whether axis 0 is cut as one range a rank.
     *
     * @return whether it is {@link ShardingStrategy#rowwise()}
     */
    public final boolean isRowwise() {
        return kind() == StrategyKind.ROWWISE;
    }

    /**
     * Returns whether axis 1 is cut as one range a rank.
     *
     * @return whether it is {@link ShardingStrategy#columnwise()}
     */
    public final boolean isColwise() {
        return kind() == StrategyKind.COLUMNWISE;
    }

    /**
     * Returns whether each rank has a part of two halves.
     *
     * @return whether it is {@link ShardingStrategy#gateUp()}, of any axis
     */
    public final boolean isGateUp() {
        return kind() == StrategyKind.GATE_UP;
    }

    /**
     * Returns whether each rank has its heads of stacked queries, keys and values.
     *
     * @return whether it is {@link ShardingStrategy#stackedQkv(int, long)}
     */
    public final boolean isStackedQkv() {
        return kind() == StrategyKind.STACKED_QKV;
    }

    /**
     * Returns whether axis 1 is cut by heads.
     *
     * @return whether it is {@link ShardingStrategy#headAwareColumnwise(int, long)}
     */
    public final boolean isHeadAwareColwise() {
        return kind() == StrategyKind.HEAD_AWARE_COLUMNWISE;
    }

    /**
     * Returns whether axis 0 is cut by heads.
     *
     * @return whether it is {@link ShardingStrategy#headAwareRowwise(int, long)}, or that of keys
     *     and values
     */
    public final boolean isHeadAwareRowwise() {
        return kind() == StrategyKind.HEAD_AWARE_ROWWISE;
    }

    /**
     * Returns whether a block chooses the strategies of its weights.
     *
     * @return whether it is {@link ShardingStrategy#tensorParallel()}
     */
    public final boolean isTensorParallel() {
        return kind() == StrategyKind.TENSOR_PARALLEL;
    }

    /**
     * Returns whether a block divides its experts over the ranks.
     *
     * @return whether it is {@link ShardingStrategy#expertParallel()}
     */
    public final boolean isExpertParallel() {
        return kind() == StrategyKind.EXPERT_PARALLEL;
    }
}
