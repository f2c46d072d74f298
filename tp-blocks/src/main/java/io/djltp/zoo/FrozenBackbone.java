package io.djltp.zoo;

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
 * A pretrained network that is used as it is, also while what is behind it is trained: without
 * dropout, with the statistics that its batch normalizations have learned, and without gradients.
 *
 * <ul>
 *   <li>input: that of the network
 *   <li>output: its first output as features [batch, features]
 * </ul>
 */
final class FrozenBackbone extends AbstractBlock {

    private static final byte VERSION = 1;

    private final Block network;

    @SuppressWarnings("this-escape") // as all blocks of DJL
    FrozenBackbone(Block network) {
        super(VERSION);
        this.network = addChildBlock("network", network);
        network.freezeParameters(true);
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore parameterStore,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        NDArray features = network.forward(parameterStore, inputs, false).head();
        // a script computes in libtorch's inference mode, whose arrays no gradient can pass
        NDArray copy = features.duplicate();
        return new NDList(copy.reshape(flat(features.getShape())));
    }

    private static Shape flat(Shape shape) {
        return new Shape(shape.get(0), shape.slice(1).size());
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {flat(network.getOutputShapes(inputShapes)[0])};
    }

    /** {@inheritDoc} */
    @Override
    protected void initializeChildBlocks(
            NDManager manager, DataType dataType, Shape... inputShapes) {
        network.initialize(manager, dataType, inputShapes);
    }
}
