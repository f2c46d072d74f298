package io.djltp.nn;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.internal.Errors;
import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.ForecastBlock;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.layout.RepeatedPart;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.region.Recomputation;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.RandomDraws;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.function.Function;

/**
 * A block whose activations are not kept for the backward pass: that computes them again, from the
 * block's inputs.
 *
 * <pre>
 *   forward    y = f(x); of all arrays of f only x and y are kept
 *   backward   dy ──► f(x) again ──► dx, and the gradients of the parameters of f
 * </pre>
 *
 * <ul>
 *   <li>inputs: those of the block
 *   <li>output: that of the block, one array
 * </ul>
 *
 * <p>Of a stack of n such blocks, n inputs and the activations of one block live at a time. Outputs
 * and gradients are the same as without it, bit for bit. It costs one forward pass of the block
 * more, and its collectives: what the block communicates forward is communicated in the backward
 * pass once more, by all ranks in the same order.
 *
 * <p>The block has to compute the same both times. {@link ParallelDropout} does, its masks follow
 * from a seed. DJL's {@code Dropout} throws {@code UnsupportedOperationException}; blocks that keep
 * something of a forward pass throw {@code IllegalArgumentException}: batch norms, fused heads,
 * tables updated by rows, mixtures of experts.
 *
 * <p>With an ordinary parameter store, that of DJL's own trainer or of a predictor, and in
 * evaluations, it is the block itself. It is saved as the block, too.
 *
 * <p>Chen et al., 2016, <a href="https://arxiv.org/abs/1604.06174">arXiv:1604.06174</a>;
 * Megatron-LM's full recomputation, <a
 * href="https://arxiv.org/abs/2205.05198">arXiv:2205.05198</a>.
 */
public class Recompute extends AbstractBlock implements ForecastBlock {

    private static final byte VERSION = 1;

    private final Block block;

    /**
     * Creates a block.
     *
     * @param block the block to be recomputed, with one output
     */
    @SuppressWarnings("this-escape") // as in all of DJL's blocks: the child is complete
    public Recompute(Block block) {
        super(VERSION);
        this.block = addChildBlock(block.getClass().getSimpleName(), block);
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        return new NDList(
                part(
                        store,
                        inputs,
                        training,
                        "The " + block.getClass().getSimpleName() + " in a Recompute",
                        arrays -> single(block.forward(store, arrays, training, args))));
    }

    private NDArray single(NDList outputs) {
        if (outputs.size() != 1) {
            throw Errors.argument(
                    "Recompute takes a block with one output, and %s has %s: wrap its parts",
                    block.getClass().getSimpleName(), outputs.size());
        }
        return outputs.head();
    }

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        return pass.repeated(() -> pass.visit(block, input));
    }

    /** {@inheritDoc} */
    @Override
    protected void initializeChildBlocks(
            NDManager manager, DataType dataType, Shape... inputShapes) {
        block.initialize(manager, dataType, inputShapes);
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return block.getOutputShapes(inputShapes);
    }

    /** {@inheritDoc} */
    @Override
    public void saveParameters(DataOutputStream os) throws IOException {
        block.saveParameters(os);
    }

    /** {@inheritDoc} */
    @Override
    public void loadParameters(NDManager manager, DataInputStream is)
            throws IOException, MalformedModelException {
        block.loadParameters(manager, is);
    }

    /**
     * Computes a part; where a rank trains it, in a way that its arrays are dropped and computed
     * again. With an ordinary parameter store, and in an evaluation, it is just computed.
     *
     * @param store the parameters
     * @param inputs the inputs of the part
     * @param training whether it is trained
     * @param name what it is, for errors
     * @param function computes the part from its inputs, the same at every call
     * @return the output
     */
    public static NDArray part(
            ParameterStore store,
            NDList inputs,
            boolean training,
            String name,
            Function<NDList, NDArray> function) {
        ParallelContext context = RankParameterStore.contextOf(store);
        if (context == null
                || !training
                || !context.getPass().isTraining()
                || !Autograd.isRecording()) {
            return function.apply(inputs);
        }
        RepeatedPart part = new RepeatedPart(context.getPass(), inputs, name);
        Part computed = new Part(context, part, function, name);
        Recomputation recomputation =
                new Recomputation(
                        values -> context.call(() -> computed.run(values)),
                        context.getMappings().getFailure());
        return part.leave(recomputation.forward(part.getInputs()));
    }

    /**
     * A part of a block that a rank computes twice, once in the forward pass and again in the
     * backward pass, so that its arrays need not be kept in between. See {@link Recompute}.
     */
    private static final class Part {

        private final ParallelContext context;
        private final RepeatedPart part;
        private final Function<NDList, NDArray> function;
        private final String name;

        private Part(
                ParallelContext context,
                RepeatedPart part,
                Function<NDList, NDArray> function,
                String name) {
            this.context = context;
            this.part = part;
            this.function = function;
            this.name = name;
        }

        /** Computes the part, in the forward or in the backward pass. */
        private NDArray run(NDList values) {
            ForwardPass present = context.getPass();
            boolean refused = RandomDraws.isRefused();
            ForwardPass inner = part.begin(values.head().getManager());
            context.resume(inner);
            RandomDraws.setRefused(true); // what is drawn would be others the second time
            try {
                return part.end(inner, function.apply(part.enter(inner, values)));
            } catch (RuntimeException e) {
                throw RandomDraws.isRefusal(e) ? drawn(e) : inner.explain(e);
            } finally {
                RandomDraws.setRefused(refused);
                context.resume(present);
            }
        }

        private RuntimeException drawn(RuntimeException cause) {
            UnsupportedOperationException e =
                    new UnsupportedOperationException(
                            name
                                    + " is recomputed in the backward pass, and draws random"
                                    + " numbers in"
                                    + " it, as DJL's Dropout does: the second time they would be"
                                    + " others. Use io.djltp.nn.ParallelDropout, whose masks follow"
                                    + " from a seed, or a rate of 0");
            e.addSuppressed(cause);
            return e;
        }
    }
}
