package io.djltp.plan;

import ai.djl.nn.AbstractBaseBlock;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.transformer.TransformerEncoderBlock;

import io.djltp.nn.ParallelDropout;
import io.djltp.nn.djl.ParallelTransformerEncoder;
import io.djltp.nn.djl.ParallelTransformerEncoder.Parts;

import java.util.List;
import java.util.Map;
import java.util.function.Function;

/** DJL's {@link TransformerEncoderBlock}, which becomes a {@link ParallelTransformerEncoder}. */
final class EncoderStyle extends Style {

    private static final Class<?> TYPE = TransformerEncoderBlock.class;
    private static final String ATTENTION = "selfAttentionBlock";
    private static final String ATTENTION_DROPOUT = "selfAttentionDropout";
    private static final String ATTENTION_NORM = "attentionNorm";
    private static final String FEED_FORWARD = "pointWisefullyConnected";
    private static final String FEED_FORWARD_DROPOUT = "fullyConnectedDropout";
    private static final String OUTPUT_NORM = "outputNorm";
    private static final List<String> FIELDS =
            List.of(
                    ATTENTION,
                    ATTENTION_DROPOUT,
                    ATTENTION_NORM,
                    FEED_FORWARD,
                    FEED_FORWARD_DROPOUT,
                    OUTPUT_NORM);

    private final ParallelDropout inputDropout; // or null

    /**
     * Creates a style.
     *
     * @param inputDropout a dropout of the input that the block before cannot hold, or {@code null}
     */
    EncoderStyle(ParallelDropout inputDropout) {
        this.inputDropout = inputDropout;
    }

    /** {@inheritDoc} */
    @Override
    boolean isFor(Block block) {
        return block.getClass() == TYPE && new AttentionStyle().isFor(part(block, ATTENTION));
    }

    /** {@inheritDoc} */
    @Override
    String wanted() {
        return "DJL's TransformerEncoderBlock";
    }

    /** {@inheritDoc} */
    @Override
    Class<? extends Block> typeOf(Block block) {
        return ParallelTransformerEncoder.class;
    }

    /** Returns the number of heads of an encoder. */
    static int heads(Block encoder) {
        return AttentionStyle.heads(part(encoder, ATTENTION));
    }

    private static Block part(Block encoder, String name) {
        return (Block) BlockState.read(encoder, TYPE, name);
    }

    /** {@inheritDoc} */
    @Override
    ParallelTransformerEncoder parallel(Block block) {
        DropoutStyle dropout = new DropoutStyle();
        SequentialBlock feedForward = (SequentialBlock) part(block, FEED_FORWARD);
        ParallelTransformerEncoder encoder =
                new ParallelTransformerEncoder(
                        new Parts(
                                inputDropout,
                                new AttentionStyle().parallel(part(block, ATTENTION)),
                                dropout.parallel(part(block, ATTENTION_DROPOUT)),
                                new BatchNormStyle().parallel(part(block, ATTENTION_NORM)),
                                cut(feedForward),
                                dropout.parallel(part(block, FEED_FORWARD_DROPOUT)),
                                new BatchNormStyle().parallel(part(block, OUTPUT_NORM))));
        for (String unused : FIELDS) { // the encoder has parts of its own
            BlockState.write(encoder, TYPE, unused, null);
        }
        return BlockState.copy(block, encoder, AbstractBaseBlock.class);
    }

    /** Cuts the pairs of linear layers of a sequence, if they are pairs. */
    private static Block cut(SequentialBlock sequence) {
        Map<Block, Style> pairs = new LinearPairs(1).in(sequence);
        BlockTree.childrenOf(sequence)
                .values()
                .replaceAll(
                        child ->
                                pairs.containsKey(child)
                                        ? pairs.get(child).parallel(child)
                                        : child);
        return sequence;
    }

    /** Returns DJL's block of a parallel one. */
    static TransformerEncoderBlock plain(Block block) {
        Parts parts = ((ParallelTransformerEncoder) block).getParts();
        BlockTree.childrenOf(parts.feedForward()).values().replaceAll(PlainBlocks::plainOf);
        List<Block> blocks =
                List.of(
                        AttentionStyle.plain(parts.attention()),
                        DropoutStyle.plain(parts.attentionDropout()),
                        PlainBlocks.plainOf(parts.attentionNorm()),
                        parts.feedForward(),
                        DropoutStyle.plain(parts.feedForwardDropout()),
                        PlainBlocks.plainOf(parts.outputNorm()));
        TransformerEncoderBlock plain =
                new TransformerEncoderBlock(1, 1, 1, 0, Function.identity());
        List<Block> children = BlockTree.childrenOf(plain).values();
        for (int i = 0; i < FIELDS.size(); i++) {
            int child = children.indexOf(part(plain, FIELDS.get(i)));
            BlockState.write(plain, TYPE, FIELDS.get(i), blocks.get(i));
            if (child >= 0) { // its dropouts are in fields only
                children.set(child, blocks.get(i));
            }
        }
        return BlockState.copy(block, plain, AbstractBaseBlock.class);
    }

    /** {@inheritDoc} */
    @Override
    boolean isWhole() {
        return true;
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return "encoder()";
    }
}
