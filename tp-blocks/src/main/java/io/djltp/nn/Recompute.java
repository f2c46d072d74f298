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

import io.djltp.forecast.ForecastArray;
import io.djltp.forecast.ForecastBlock;
import io.djltp.forecast.PassForecast;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;

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
 * from a seed; DJL's {@code Dropout} does not and is refused, and so is what keeps something of a
 * forward pass: batch norms, fused heads, tables updated by rows, mixtures of experts.
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
            ParameterStore parameterStore,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        return new NDList(
                RecomputedPart.compute(
                        parameterStore,
                        inputs,
                        training,
                        "The " + block.getClass().getSimpleName() + " in a Recompute",
                        arrays -> single(block.forward(parameterStore, arrays, training, params))));
    }

    private NDArray single(NDList outputs) {
        if (outputs.size() != 1) {
            throw new IllegalArgumentException(
                    "Recompute takes a block with one output, and "
                            + block.getClass().getSimpleName()
                            + " has "
                            + outputs.size()
                            + ": wrap its parts");
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
    public String getEquation() {
        return "y = f(x), computed again in the backward pass";
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
}
