package io.djltp.plan;

import ai.djl.nn.AbstractBaseBlock;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.core.Linear;
import ai.djl.nn.transformer.ScaledDotProductAttentionBlock;

import io.djltp.nn.djl.ParallelAttention;
import io.djltp.nn.djl.ParallelAttention.Projections;

/** DJL's {@link ScaledDotProductAttentionBlock}, which becomes a {@link ParallelAttention}. */
final class AttentionStyle extends Style {

    private static final Class<?> TYPE = ScaledDotProductAttentionBlock.class;
    private static final String DROPOUT = "attentionProbsDropout";

    /** {@inheritDoc} */
    @Override
    boolean isFor(Block block) {
        return block.getClass() == TYPE && embedding(block) % heads(block) == 0;
    }

    /** {@inheritDoc} */
    @Override
    String wanted() {
        return "DJL's ScaledDotProductAttentionBlock";
    }

    /** {@inheritDoc} */
    @Override
    Class<? extends Block> typeOf(Block block) {
        return ParallelAttention.class;
    }

    /** {@inheritDoc} */
    @Override
    ParallelAttention parallel(Block block) {
        ScaledDotProductAttentionBlock attention = (ScaledDotProductAttentionBlock) block;
        int heads = heads(block);
        long headDim = embedding(block) / heads;
        Projections projections = Projections.of(heads, headDim);
        LinearState.move(attention.getKeyProjection(), projections.key());
        LinearState.move(attention.getQueryProjection(), projections.query());
        LinearState.move(attention.getValueProjection(), projections.value());
        LinearState.move(attention.getResultProjection(), projections.result());
        Block dropout = (Block) BlockState.read(block, TYPE, DROPOUT);
        ParallelAttention parallel =
                new ParallelAttention(
                        heads, headDim, projections, new DropoutStyle().parallel(dropout));
        return BlockState.copy(block, parallel, AbstractBaseBlock.class);
    }

    static int heads(Block attention) {
        return (Integer) BlockState.read(attention, TYPE, "headCount");
    }

    private static int embedding(Block attention) {
        return (Integer) BlockState.read(attention, TYPE, "embeddingSize");
    }

    /** Returns DJL's block of a parallel one. */
    static ScaledDotProductAttentionBlock plain(Block block) {
        ParallelAttention parallel = (ParallelAttention) block;
        ScaledDotProductAttentionBlock attention =
                ScaledDotProductAttentionBlock.builder()
                        .setEmbeddingSize((int) (parallel.getHeads() * parallel.getHeadDim()))
                        .setHeadCount(parallel.getHeads())
                        .optAttentionProbsDropoutProb(parallel.getDropout().getRate())
                        .build();
        Linear[] plain = {
            attention.getKeyProjection(),
            attention.getQueryProjection(),
            attention.getValueProjection(),
            attention.getResultProjection()
        };
        for (int i = 0; i < plain.length; i++) {
            LinearState.move(parallel.getChildren().get(i).getValue(), plain[i]);
        }
        Block dropout = (Block) BlockState.read(attention, TYPE, DROPOUT);
        BlockState.copy(parallel.getDropout(), dropout, AbstractBlock.class);
        return BlockState.copy(block, attention, AbstractBaseBlock.class);
    }

    /** {@inheritDoc} */
    @Override
    boolean isWhole() {
        return true;
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return "attention()";
    }
}
