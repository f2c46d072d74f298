package io.djltp.plan;

import ai.djl.nn.Block;

import io.djltp.nn.ParallelDropout;
import io.djltp.nn.SyncBatchNorm;
import io.djltp.nn.djl.ParallelAttention;
import io.djltp.nn.djl.ParallelTransformerEncoder;

/** The way back: DJL's block of each parallel one that a plan makes. */
final class PlainBlocks {

    private PlainBlocks() {}

    /** Returns whether a block is one that a plan makes. */
    static boolean isParallel(Block block) {
        return LinearState.isParallel(block)
                || block instanceof ParallelDropout
                || block instanceof SyncBatchNorm
                || block instanceof EmbeddingStyle.Replaced
                || block instanceof ParallelAttention
                || block instanceof ParallelTransformerEncoder;
    }

    /**
     * Returns DJL's block with the parameters of a parallel one.
     *
     * @param block a block
     * @return DJL's, or the block itself if it is not one that a plan makes
     */
    static Block plainOf(Block block) {
        if (LinearState.isParallel(block)) {
            return LinearState.plain(block);
        }
        if (block instanceof ParallelDropout) {
            return DropoutStyle.plain(block);
        }
        if (block instanceof SyncBatchNorm) {
            return BatchNormStyle.plain(block);
        }
        if (block instanceof EmbeddingStyle.Replaced) {
            return EmbeddingStyle.plain(block);
        }
        if (block instanceof ParallelAttention) {
            return AttentionStyle.plain(block);
        }
        if (block instanceof ParallelTransformerEncoder) {
            return EncoderStyle.plain(block);
        }
        return block;
    }
}
