package io.djltp.zoo;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.BlockList;
import ai.djl.nn.Parameter;
import ai.djl.nn.ParameterList;
import ai.djl.training.initializer.Initializer;
import ai.djl.util.PairList;

import java.io.DataOutputStream;
import java.io.IOException;
import java.util.Map;
import java.util.function.Predicate;

/** A block that is another one in all but its forward pass: parameters, names, shapes, files. */
abstract class DelegatedBlock implements Block {

    private final Block network;

    DelegatedBlock(Block network) {
        this.network = network;
    }

    /** {@inheritDoc} */
    @Override
    public void setInitializer(Initializer initializer, Parameter.Type type) {
        network.setInitializer(initializer, type);
    }

    /** {@inheritDoc} */
    @Override
    public void setInitializer(Initializer initializer, String name) {
        network.setInitializer(initializer, name);
    }

    /** {@inheritDoc} */
    @Override
    public void setInitializer(Initializer initializer, Predicate<Parameter> predicate) {
        network.setInitializer(initializer, predicate);
    }

    /** {@inheritDoc} */
    @Override
    public void initialize(NDManager manager, DataType dataType, Shape... inputShapes) {
        network.initialize(manager, dataType, inputShapes);
    }

    /** {@inheritDoc} */
    @Override
    public boolean isInitialized() {
        return network.isInitialized();
    }

    /** {@inheritDoc} */
    @Override
    public void cast(DataType dataType) {
        network.cast(dataType);
    }

    /** {@inheritDoc} */
    @Override
    public void clear() {
        network.clear();
    }

    /** {@inheritDoc} */
    @Override
    public PairList<String, Shape> describeInput() {
        return network.describeInput();
    }

    /** {@inheritDoc} */
    @Override
    public BlockList getChildren() {
        return network.getChildren();
    }

    /** {@inheritDoc} */
    @Override
    public ParameterList getDirectParameters() {
        return network.getDirectParameters();
    }

    /** {@inheritDoc} */
    @Override
    public ParameterList getParameters() {
        return network.getParameters();
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return network.getOutputShapes(inputShapes);
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getInputShapes() {
        return network.getInputShapes();
    }

    /** {@inheritDoc} */
    @Override
    public DataType[] getOutputDataTypes() {
        return network.getOutputDataTypes();
    }

    /** {@inheritDoc} */
    @Override
    public void saveParameters(DataOutputStream os) throws IOException {
        network.saveParameters(os);
    }

    /** {@inheritDoc} */
    @Override
    public Map<String, String> getCustomMetadata() {
        return network.getCustomMetadata();
    }
}
