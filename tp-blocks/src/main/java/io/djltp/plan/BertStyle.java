package io.djltp.plan;

import ai.djl.nn.Block;
import ai.djl.nn.norm.Dropout;
import ai.djl.nn.transformer.BertBlock;

import io.djltp.nn.ParallelDropout;
import io.djltp.nn.djl.ParallelTransformerEncoder;

import java.util.List;

/**
 * DJL's {@link BertBlock}, which stays: its class is final, and other blocks hold it by that class.
 * Its encoders become parallel ones. Its dropout of the embeddings is in a field that holds nothing
 * else than DJL's, and becomes that of the input of the first encoder, which is the next thing done
 * to them.
 */
final class BertStyle extends Style {

    private static final Class<?> TYPE = BertBlock.class;

    /** {@inheritDoc} */
    @Override
    boolean isFor(Block block) {
        return block.getClass() == TYPE
                && encoders(block).stream().allMatch(new EncoderStyle(null)::isFor);
    }

    /** {@inheritDoc} */
    @Override
    String wanted() {
        return "DJL's BertBlock";
    }

    /** {@inheritDoc} */
    @Override
    Class<? extends Block> typeOf(Block block) {
        return BertBlock.class;
    }

    /** {@inheritDoc} */
    @Override
    Block parallel(Block block) {
        List<Block> encoders = encoders(block);
        List<Block> children = BlockTree.childrenOf(block).values();
        Block dropout = embeddingDropout(block);
        float rate = DropoutStyle.rateOf(dropout);
        for (int i = 0; i < encoders.size(); i++) {
            ParallelDropout moved = null;
            if (i == 0 && rate > 0) {
                moved = new DropoutStyle().parallel(dropout);
                setRate(dropout, 0);
            }
            Block parallel = new EncoderStyle(moved).parallel(encoders.get(i));
            children.set(children.indexOf(encoders.get(i)), parallel);
            encoders.set(i, parallel);
        }
        return block;
    }

    /** Gives the dropout of the embeddings back that the first encoder has got. */
    static void restore(Block bert) {
        Block first = encoders(bert).stream().findFirst().orElse(null);
        if (first instanceof ParallelTransformerEncoder) {
            ParallelDropout moved = ((ParallelTransformerEncoder) first).getParts().inputDropout();
            if (moved != null) {
                setRate(embeddingDropout(bert), moved.getRate());
            }
        }
    }

    private static Block embeddingDropout(Block bert) {
        return (Block) BlockState.read(bert, TYPE, "embeddingDropout");
    }

    private static void setRate(Block dropout, float rate) {
        BlockState.write(dropout, Dropout.class, "rate", rate);
    }

    /** Returns the list of encoders, for which Java knows no class. */
    @SuppressWarnings("unchecked") // a parallel one is a TransformerEncoderBlock, too
    static List<Block> encoders(Block bert) {
        return (List<Block>) BlockState.read(bert, TYPE, "transformerEncoderBlocks");
    }

    /** {@inheritDoc} */
    @Override
    boolean isWhole() {
        return true;
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return "bert()";
    }
}
