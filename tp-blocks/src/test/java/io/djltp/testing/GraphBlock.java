package io.djltp.testing;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;

import java.util.LinkedHashMap;
import java.util.Map;

/** A user's own block: named children and parameters, and a function that calls them. */
public final class GraphBlock extends AbstractBlock {

    private static final byte VERSION = 1;

    private final Map<String, Block> blocks = new LinkedHashMap<>();
    private final Map<String, Shape> inputs = new LinkedHashMap<>();
    private final Map<String, Parameter> own = new LinkedHashMap<>();
    private final Shape output;
    private final Function function;

    /**
     * Creates a block.
     *
     * @param output the shape of a row of the output
     * @param function what the block computes
     */
    public GraphBlock(Shape output, Function function) {
        super(VERSION);
        this.output = output;
        this.function = function;
    }

    /** What a block computes. */
    @FunctionalInterface
    public interface Function {

        /**
         * Computes the output.
         *
         * @param call calls children, and has the values of parameters
         * @param input the input
         * @return the output
         */
        NDList apply(Call call, NDList input);
    }

    /** What a block of one array computes. */
    @FunctionalInterface
    public interface Single {

        /**
         * Computes the output.
         *
         * @param call calls children, and has the values of parameters
         * @param input the input
         * @return the output
         */
        NDArray apply(Call call, NDArray input);
    }

    /**
     * Creates a block of one array.
     *
     * @param units the features of the output
     * @param function what the block computes
     * @return the block
     */
    public static GraphBlock graph(long units, Single function) {
        return new GraphBlock(
                new Shape(units), (call, in) -> new NDList(function.apply(call, in.head())));
    }

    /** A call of the block. */
    public final class Call {

        private final ParameterStore store;
        private final boolean training;

        private Call(ParameterStore store, boolean training) {
            this.store = store;
            this.training = training;
        }

        /**
         * Calls a child.
         *
         * @param child its name
         * @param input its input
         * @return its output
         */
        public NDArray call(String child, NDArray input) {
            return list(child, input).head();
        }

        /**
         * Calls a child.
         *
         * @param child its name
         * @param inputs its inputs
         * @return its outputs
         */
        public NDList list(String child, NDArray... inputs) {
            return blocks.get(child).forward(store, new NDList(inputs), training);
        }

        /**
         * Returns the value of a parameter, from the store.
         *
         * @param name its name
         * @return the value
         */
        public NDArray value(String name) {
            return store.getValue(own.get(name), Device.cpu(), training);
        }

        /**
         * Returns the model's array of a parameter.
         *
         * @param name its name
         * @return the array
         */
        public NDArray array(String name) {
            return own.get(name).getArray();
        }

        /** Returns the rank, or {@code null} under an ordinary parameter store. */
        public ParallelContext context() {
            return RankParameterStore.contextOf(store);
        }

        /** Returns whether the block is trained. */
        public boolean isTraining() {
            return training;
        }
    }

    /**
     * Adds a child. It may be in several places of the network.
     *
     * @param name the name
     * @param block the child
     * @param row the shape of a row of its input
     * @return this block
     */
    public GraphBlock add(String name, Block block, long... row) {
        blocks.put(name, addChildBlock(name, block));
        inputs.put(name, new Shape(row));
        return this;
    }

    /**
     * Adds a parameter.
     *
     * @param name the name
     * @param shape its shape
     * @return this block
     */
    public GraphBlock add(String name, Shape shape) {
        return own(Blocks.parameter(name, shape));
    }

    /**
     * Adds a parameter.
     *
     * @param parameter the parameter
     * @return this block
     */
    public GraphBlock own(Parameter parameter) {
        own.put(parameter.getName(), addParameter(parameter));
        return this;
    }

    /**
     * Uses a parameter of a child.
     *
     * @param name the name that it has here
     * @param parameter the parameter
     * @return this block
     */
    public GraphBlock tie(String name, Parameter parameter) {
        own.put(name, parameter);
        return this;
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore parameterStore,
            NDList list,
            boolean training,
            PairList<String, Object> params) {
        return function.apply(new Call(parameterStore, training), list);
    }

    /** {@inheritDoc} */
    @Override
    protected void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
        long rows = shapes[0].get(0);
        blocks.forEach(
                (name, block) -> {
                    if (!block.isInitialized()) {
                        block.initialize(manager, type, new Shape(rows).addAll(inputs.get(name)));
                    }
                });
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] shapes) {
        return new Shape[] {new Shape(shapes[0].get(0)).addAll(output)};
    }
}
