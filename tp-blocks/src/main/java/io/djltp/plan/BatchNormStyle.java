package io.djltp.plan;

import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.norm.BatchNorm;

import io.djltp.nn.SyncBatchNorm;

import java.util.List;

/** DJL's {@link BatchNorm}, which becomes a {@link SyncBatchNorm}. */
final class BatchNormStyle extends Style {

    private static final List<String> PARAMETERS =
            List.of("gamma", "beta", "runningMean", "runningVar");

    /** {@inheritDoc} */
    @Override
    boolean isFor(Block block) {
        return block.getClass() == BatchNorm.class;
    }

    /** {@inheritDoc} */
    @Override
    String wanted() {
        return "DJL's BatchNorm";
    }

    /** {@inheritDoc} */
    @Override
    Class<? extends Block> typeOf(Block block) {
        return SyncBatchNorm.class;
    }

    /** {@inheritDoc} */
    @Override
    Block parallel(Block block) {
        SyncBatchNorm norm =
                SyncBatchNorm.builder()
                        .optAxis((Integer) read(block, "axis"))
                        .optEpsilon((Float) read(block, "epsilon"))
                        .optMomentum((Float) read(block, "momentum"))
                        .build();
        for (String name : PARAMETERS) {
            BlockState.write(norm, SyncBatchNorm.class, name, read(block, name));
        }
        BlockState.write(norm, SyncBatchNorm.class, "channels", read(block, "inChannels"));
        return BlockState.copy(block, norm, AbstractBlock.class);
    }

    private static Object read(Block norm, String name) {
        return BlockState.read(norm, BatchNorm.class, name);
    }

    private static Object readParallel(Block norm, String name) {
        return BlockState.read(norm, SyncBatchNorm.class, name);
    }

    /** Returns DJL's block of a parallel one. */
    static BatchNorm plain(Block block) {
        BatchNorm norm =
                BatchNorm.builder()
                        .optAxis((Integer) readParallel(block, "axis"))
                        .optEpsilon((Float) readParallel(block, "epsilon"))
                        .optMomentum((Float) readParallel(block, "momentum"))
                        .optCenter(isTrained(block, "beta"))
                        .optScale(isTrained(block, "gamma"))
                        .build();
        for (String name : PARAMETERS) {
            BlockState.write(norm, BatchNorm.class, name, readParallel(block, name));
        }
        BlockState.write(norm, BatchNorm.class, "inChannels", readParallel(block, "channels"));
        return BlockState.copy(block, norm, AbstractBlock.class);
    }

    private static boolean isTrained(Block block, String name) {
        return ((Parameter) readParallel(block, name)).requiresGradient();
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return "batchNorm()";
    }
}
