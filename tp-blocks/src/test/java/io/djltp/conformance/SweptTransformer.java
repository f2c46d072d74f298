package io.djltp.conformance;

import static io.djltp.testing.Blocks.sequence;

import ai.djl.ndarray.NDList;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.norm.LayerNorm;

import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.nn.transformer.ParallelTransformerDecoderLayer;
import io.djltp.nn.transformer.ParallelTransformerEncoderLayer;

import java.util.function.Supplier;

/**
 * A layer of a transformer: an encoder's, or a decoder's with causal and perhaps cross-attention,
 * here to its own input.
 */
record SweptTransformer(
        SweptAttention attention,
        SweptAttention crossAttention,
        long hidden,
        boolean gated,
        boolean rms,
        boolean preNorm,
        Layout layout)
        implements SweptPart {

    static SweptTransformer draw(Draws draws, Layout layout, long inputs) {
        int width = (int) inputs;
        boolean decoder = draws.coin();
        boolean crossed = decoder && draws.between(0, 2) == 0;
        return new SweptTransformer(
                SweptAttention.draw(draws, layout, width, false, decoder),
                crossed ? SweptAttention.draw(draws, layout, width, true, false) : null,
                draws.cutLength(6),
                draws.coin(),
                draws.coin(),
                draws.coin(),
                layout);
    }

    @Override
    public long outputs() {
        return attention.outputs();
    }

    @Override
    public Block create(boolean cut) {
        Supplier<Block> norm =
                rms ? () -> RmsNorm.builder().build() : () -> LayerNorm.builder().axis(2).build();
        ParallelMlp mlp =
                ParallelMlp.builder()
                        .setUnits(outputs())
                        .setHiddenFeatures(hidden)
                        .optGated(gated)
                        .optSequenceParallel(layout == Layout.TOKENS_CUT)
                        .build();
        if (!attention.causal()) {
            return ParallelTransformerEncoderLayer.builder()
                    .setAttention(attention.block())
                    .setMlp(mlp)
                    .setNorm(norm)
                    .optPreNorm(preNorm)
                    .build();
        }
        ParallelTransformerDecoderLayer.Builder decoder =
                ParallelTransformerDecoderLayer.builder()
                        .setAttention(attention.block())
                        .setMlp(mlp)
                        .setNorm(norm)
                        .optPreNorm(preNorm);
        if (crossAttention == null) {
            return decoder.build();
        }
        return sequence(
                new LambdaBlock(x -> new NDList(x.head(), x.head())),
                decoder.optCrossAttention(crossAttention.block()).build());
    }
}
