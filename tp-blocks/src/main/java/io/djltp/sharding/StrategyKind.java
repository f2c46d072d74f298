package io.djltp.sharding;

/** The kinds of strategies that have a name of their own. */
enum StrategyKind {
    ROWWISE,
    COLUMNWISE,
    GATE_UP,
    STACKED_QKV,
    HEAD_AWARE_COLUMNWISE,
    HEAD_AWARE_ROWWISE,
    TENSOR_PARALLEL,
    EXPERT_PARALLEL,
    OTHER
}
