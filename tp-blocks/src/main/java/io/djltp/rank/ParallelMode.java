package io.djltp.rank;

/** How the ranks share the work of a training step. */
public enum ParallelMode {
    /**
     * Tensor parallel: all ranks compute the same batch, and tensor-parallel layers are cut over
     * the ranks.
     */
    TENSOR,
    /**
     * Data parallel: every rank computes its part of the batch with the whole network, and the
     * gradients of all parameters are summed over the ranks.
     */
    DATA,
    /**
     * Mixed, for a large head on a small body: the body is data parallel over the ranks; at the
     * first layer of the head ({@code optBatchShardedInput(true)}) the features of all ranks are
     * gathered; the head is tensor parallel over the same ranks; and the gradients of the features
     * are scattered back.
     */
    MIXED
}
