package io.djltp.plan;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.BlockList;
import ai.djl.nn.transformer.TransformerEncoderBlock;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.nn.ParallelDropout;

import org.jspecify.annotations.Nullable;

import java.util.List;
import java.util.Objects;
import java.util.function.Function;
import java.util.stream.Stream;

/**
 * DJL's {@link TransformerEncoderBlock}, each rank with some heads of its attention and some hidden
 * features of its feed-forward part.
 *
 * <pre>
 *   a = x + dropout(attention(x, mask))
 *   y = norm(x + dropout(feedForward(norm(a))))        the norms are DJL's: batch normalizations
 * </pre>
 *
 * <ul>
 *   <li>inputs, as DJL's: [x] or [x, mask], x of [batch, length, E], the same on all ranks
 *   <li>output: [batch, length, E], the same on all ranks
 * </ul>
 *
 * <p>Collectives: two all-reduces forward and two backward, one each of attention and feed-forward
 * part.
 *
 * <p>Children, parameters and what is saved are those of DJL's block, and under an ordinary
 * parameter store so is the computation.
 */
final class ParallelTransformerEncoder extends TransformerEncoderBlock {

    private final Parts parts;
    private final List<ParallelDropout> dropouts; // where a walk of the network finds them

    /** What an encoder is made of. */
    record Parts(
            @Nullable ParallelDropout inputDropout,
            ParallelAttention attention,
            ParallelDropout attentionDropout,
            Block attentionNorm,
            Block feedForward,
            ParallelDropout feedForwardDropout,
            Block outputNorm) {}

    /** Creates an encoder. */
    ParallelTransformerEncoder(Parts parts) {
        super(1, 1, 1, 0, Function.identity()); // the smallest, whose parts are not used
        this.parts = parts;
        dropouts =
                Stream.of(
                                parts.inputDropout(),
                                parts.attentionDropout(),
                                parts.feedForwardDropout())
                        .filter(Objects::nonNull)
                        .toList();
        children = new BlockList();
        addChildBlock("selfAttention", parts.attention());
        addChildBlock("attentionNorm", parts.attentionNorm());
        addChildBlock("outputBlock", parts.feedForward());
        addChildBlock("outputNorm", parts.outputNorm());
    }

    /** Returns what the encoder is made of. */
    Parts getParts() {
        return parts;
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        NDArray x = inputs.head();
        NDList attended = inputs;
        if (parts.inputDropout() != null) {
            x = parts.inputDropout().forward(store, new NDList(x), training).head();
            attended = new NDList(inputs);
            attended.set(0, x);
        }
        NDList attention = parts.attention().forward(store, attended, training);
        attention = parts.attentionDropout().forward(store, attention, training);
        NDList sum = new NDList(attention.singletonOrThrow().add(x));
        NDList normalized = parts.attentionNorm().forward(store, sum, training);
        NDList output = parts.feedForward().forward(store, normalized, training);
        output = parts.feedForwardDropout().forward(store, output, training);
        sum = new NDList(output.singletonOrThrow().add(x)); // of x, not of what was normalized
        return parts.outputNorm().forward(store, sum, training);
    }

    /** {@inheritDoc} */
    @Override
    public void initializeChildBlocks(NDManager manager, DataType dataType, Shape... inputShapes) {
        for (Block child : children.values()) {
            child.initialize(manager, dataType, inputShapes);
        }
        dropouts.forEach(dropout -> dropout.initialize(manager, dataType, inputShapes));
    }
}
