package io.djltp.conformance;

import static io.djltp.testing.Blocks.attention;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;

import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.attention.RotaryEmbedding;

import java.util.List;
import java.util.stream.IntStream;

/**
 * Attention with grouped queries, whose heads the ranks do not divide, and of which several ranks
 * may have the same keys and values.
 *
 * @param outputs the features of the output
 * @param heads the query heads
 * @param keyHeads the key/value heads
 * @param dim the features of a head
 * @param bias whether there are biases
 * @param causal whether a token sees those before it only
 * @param rotary whether queries and keys are rotated by their positions
 * @param fused whether the projections are one weight
 * @param normed whether queries and keys are normalised
 * @param crossed whether keys and values are made of a second input, here the first again
 * @param masked whether some keys are not seen
 * @param layout how the input lies
 */
record SweptAttention(
        long outputs,
        int heads,
        int keyHeads,
        int dim,
        boolean bias,
        boolean causal,
        boolean rotary,
        boolean fused,
        boolean normed,
        boolean crossed,
        boolean masked,
        Layout layout)
        implements SweptPart {

    static SweptAttention draw(Draws draws, Layout layout, long inputs) {
        return draw(draws, layout, draws.between(1, 6), draws.between(0, 3) == 0, draws.coin());
    }

    /** Draws attention with so many output features. */
    static SweptAttention draw(
            Draws draws, Layout layout, int outputs, boolean crossed, boolean causal) {
        int heads = draws.cutLength(2);
        List<Integer> divisors =
                IntStream.rangeClosed(1, heads).filter(i -> heads % i == 0).boxed().toList();
        return new SweptAttention(
                outputs,
                heads,
                draws.of(divisors),
                2 * draws.between(1, 2),
                draws.coin(),
                causal && !crossed,
                draws.coin() && !crossed,
                draws.coin() && !crossed,
                draws.between(0, 3) == 0,
                crossed,
                layout == Layout.WHOLE && draws.between(0, 2) == 0,
                layout);
    }

    @Override
    public Block create(boolean cut) {
        return sequence(new LambdaBlock(this::inputs), block());
    }

    /** Returns what attention takes: x, the memory that is x too, and which tokens are seen. */
    private NDList inputs(NDList list) {
        NDArray x = list.head();
        NDList inputs = new NDList(x);
        if (crossed) {
            inputs.add(x);
        }
        if (masked) {
            inputs.add(x.get("..., 0").gt(-0.3).toType(x.getDataType(), false));
        }
        return inputs;
    }

    ParallelMultiHeadAttention block() {
        ParallelMultiHeadAttention.Builder builder =
                attention(outputs, heads)
                        .optKeyValueHeads(keyHeads)
                        .optHeadDim(dim)
                        .optBias(bias)
                        .optCausal(causal)
                        .optFusedQkv(fused)
                        .optCrossAttention(crossed)
                        .optSequenceParallel(layout == Layout.TOKENS_CUT);
        if (rotary) {
            builder.optRotary(RotaryEmbedding.builder().build());
        }
        if (normed) {
            builder.optQueryKeyNorm(1e-5f);
        }
        return builder.build();
    }
}
