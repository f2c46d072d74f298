package io.djltp.testing;

import static io.djltp.testing.Blocks.linear;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

/**
 * A block of sequences between two plain linear layers: the gradient of the block's input, and what
 * it does to what comes before, shows in the weights of the first.
 */
public final class Surrounded extends AbstractBlock {

    private static final byte VERSION = 1;

    private final Block before;
    private final Block beforeMemory; // of the second input, or null
    private final Block block;
    private final Block after;
    private final long width;

    /**
     * Creates a network. Its inputs are x [B, T, any], optionally a memory [B, S, any], and what
     * else the block takes.
     *
     * @param block the block
     * @param width the features of the block's input and output
     * @param memory whether the second input is a sequence too
     * @param output the features of the output
     */
    public Surrounded(Block block, long width, boolean memory, long output) {
        super(VERSION);
        this.width = width;
        before = addChildBlock("before", linear(width));
        Block other = linear(width);
        beforeMemory = memory ? addChildBlock("memory", other) : null;
        this.block = addChildBlock("block", block);
        after = addChildBlock("after", linear(output));
    }

    /**
     * Returns a mask of padding, by which each row sees one key more than the row before.
     *
     * @param manager the manager of the mask
     * @param rows the rows
     * @param keys the keys
     * @return the mask, [rows, keys]
     */
    public static NDArray mask(NDManager manager, int rows, int keys) {
        float[] seen = new float[rows * keys];
        for (int i = 0; i < seen.length; i++) {
            seen[i] = i % keys <= i / keys ? 1 : 0;
        }
        return manager.create(seen, new Shape(rows, keys));
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList in, boolean training, PairList<String, Object> params) {
        NDList inner = new NDList(in);
        inner.set(0, call(before, store, in.get(0), training));
        if (beforeMemory != null) {
            inner.set(1, call(beforeMemory, store, in.get(1), training));
        }
        NDArray y = block.forward(store, inner, training).singletonOrThrow();
        return new NDList(call(after, store, y, training));
    }

    private static NDArray call(Block layer, ParameterStore store, NDArray x, boolean training) {
        return layer.forward(store, new NDList(x), training).singletonOrThrow();
    }

    /** {@inheritDoc} */
    @Override
    protected void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
        Shape[] inner = shapes.clone();
        before.initialize(manager, type, shapes[0]);
        inner[0] = new Shape(shapes[0].get(0), shapes[0].get(1), width);
        if (beforeMemory != null) {
            beforeMemory.initialize(manager, type, shapes[1]);
            inner[1] = new Shape(shapes[1].get(0), shapes[1].get(1), width);
        }
        block.initialize(manager, type, inner);
        after.initialize(manager, type, inner[0]);
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] shapes) {
        Shape inner = new Shape(shapes[0].get(0), shapes[0].get(1), width);
        return after.getOutputShapes(new Shape[] {inner});
    }
}
