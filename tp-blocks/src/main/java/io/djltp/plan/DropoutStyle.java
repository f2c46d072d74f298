package io.djltp.plan;

import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.norm.Dropout;

import io.djltp.nn.ParallelDropout;

/** DJL's {@link Dropout}, which becomes a {@link ParallelDropout}. */
final class DropoutStyle extends Style {

    /** {@inheritDoc} */
    @Override
    boolean isFor(Block block) {
        return block.getClass() == Dropout.class;
    }

    /** {@inheritDoc} */
    @Override
    String wanted() {
        return "DJL's Dropout";
    }

    /** {@inheritDoc} */
    @Override
    Class<? extends Block> typeOf(Block block) {
        return ParallelDropout.class;
    }

    /** {@inheritDoc} */
    @Override
    ParallelDropout parallel(Block block) {
        ParallelDropout dropout = ParallelDropout.builder().optRate(rateOf(block)).build();
        return BlockState.copy(block, dropout, AbstractBlock.class);
    }

    /** Returns the rate of one of DJL's dropouts. */
    static float rateOf(Block dropout) {
        return (Float) BlockState.read(dropout, Dropout.class, "rate");
    }

    /** Returns DJL's dropout of a parallel one. */
    static Dropout plain(Block parallel) {
        float rate = ((ParallelDropout) parallel).getRate();
        Dropout dropout = Dropout.builder().optRate(rate).build();
        return BlockState.copy(parallel, dropout, AbstractBlock.class);
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return "dropout()";
    }
}
