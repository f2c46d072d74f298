package io.djltp.testing;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.collective.CollectiveCounts;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.Autograd;
import io.djltp.rank.ParallelMode;
import io.djltp.sharding.ShardedBlock;
import io.djltp.sharding.ShardingStrategy;

import java.util.List;
import java.util.function.BiFunction;

/**
 * One forward and one backward pass of a layer on ranks, without a trainer. Every rank's arrays
 * belong to the manager of the test.
 */
public final class LayerPass {

    /** What a rank has of an array. */
    public enum Part {
        /** All of it. */
        WHOLE,
        /** Its range of the last axis. */
        FEATURES,
        /** Its range of the first axis. */
        ROWS;

        /**
         * Returns a copy of what a rank has.
         *
         * @param whole the whole
         * @param rank the rank
         * @param ranks the number of ranks
         * @return the copy
         */
        public NDArray of(NDArray whole, int rank, int ranks) {
            int axis = this == ROWS ? 0 : whole.getShape().dimension() - 1;
            return this == WHOLE ? whole.duplicate() : Ranks.slice(whole, axis, rank, ranks);
        }
    }

    private final ShardedBlock block;
    private final NDManager manager;
    private final int size;
    private List<RankPass> passes;

    private LayerPass(ShardedBlock block, NDManager manager, int size) {
        this.block = block;
        this.manager = manager;
        this.size = size;
    }

    /**
     * Computes a layer.
     *
     * @param mode how the ranks share the work
     * @param ranks the number of ranks
     * @param block the layer, initialized with the whole parameters
     * @param input the whole input
     * @param gradient the whole gradient of the output
     * @param cutInput cuts the input for a rank
     * @param cutGradient cuts the gradient for a rank
     * @return the passes of all ranks
     */
    public static LayerPass run(
            ParallelMode mode,
            int ranks,
            ShardedBlock block,
            NDArray input,
            NDArray gradient,
            BiFunction<NDArray, ParallelContext, NDArray> cutInput,
            BiFunction<NDArray, ParallelContext, NDArray> cutGradient) {
        LayerPass pass = new LayerPass(block, input.getManager(), ranks);
        pass.passes =
                Ranks.run(
                        mode,
                        ranks,
                        context ->
                                pass.runRank(
                                        context,
                                        input.getShape().get(0),
                                        cutInput.apply(input, context),
                                        cutGradient.apply(gradient, context)));
        return pass;
    }

    /**
     * Runs a forward and a backward pass.
     *
     * @param mode how the ranks share the work
     * @param ranks the number of ranks
     * @param block the layer, initialized
     * @param input the whole input
     * @param gradient the whole gradient of the output
     * @param inputPart what a rank has of the input
     * @param outputPart what a rank has of the output
     * @return the passes of all ranks
     */
    public static LayerPass run(
            ParallelMode mode,
            int ranks,
            ShardedBlock block,
            NDArray input,
            NDArray gradient,
            Part inputPart,
            Part outputPart) {
        return run(
                mode,
                ranks,
                block,
                input,
                gradient,
                (whole, context) -> inputPart.of(whole, context.getRank(), ranks),
                (whole, context) -> outputPart.of(whole, context.getRank(), ranks));
    }

    /**
     * Asserts that the outputs and the gradients are those of a dense layer.
     *
     * @param dense the output, and the gradients of the input, of the weight and of the bias if
     *     there is one
     * @param inputPart what a rank has of the input
     * @param outputPart what a rank has of the output
     * @param tolerance the difference that is allowed, or 0 if the bits are the same
     */
    public void assertDense(NDList dense, Part inputPart, Part outputPart, double tolerance) {
        for (int rank = 0; rank < size; rank++) {
            NDArray own = outputPart.of(dense.get(0), rank, size);
            assertSame(output(rank), own, tolerance, "output of rank " + rank);
            own = inputPart.of(dense.get(1), rank, size);
            assertSame(inputGradient(rank), own, tolerance, "input gradient of rank " + rank);
        }
        assertSame(gatheredGradient("weight"), dense.get(2), tolerance, "weight gradient");
        if (dense.size() > 3) {
            assertBias(dense.get(3), outputPart, tolerance);
        }
    }

    private void assertBias(NDArray expected, Part outputPart, double tolerance) {
        Parameter bias = block.getDirectParameters().get("bias");
        if (!block.getShardingStrategy(bias).isReplicated()) {
            assertSame(gatheredGradient("bias"), expected, tolerance, "bias gradient");
            return;
        }
        NDArray sum = manager.zeros(expected.getShape());
        for (int rank = 0; rank < size; rank++) {
            sum.addi(gradient(rank, "bias").toType(DataType.FLOAT32, false));
            if (outputPart == Part.WHOLE) {
                String what = "bias gradient of rank " + rank;
                assertSame(gradient(rank, "bias"), expected, tolerance, what);
            }
        }
        if (outputPart == Part.ROWS) { // each rank has that of its rows
            assertSame(sum, expected, tolerance, "sum of bias gradients");
        }
    }

    private static void assertSame(
            NDArray actual, NDArray expected, double tolerance, String what) {
        if (tolerance == 0) {
            ArrayAssert.assertExact(actual, expected.toFloatArray(), expected.getShape(), what);
        } else {
            ArrayAssert.assertClose(actual, expected, tolerance, what);
        }
    }

    private RankPass runRank(
            ParallelContext context, long batch, NDArray input, NDArray outputGradient) {
        RankParameterStore store = new RankParameterStore(manager, context);
        for (Parameter parameter : block.getDirectParameters().values()) {
            store.setValue(parameter, shard(parameter, context));
        }
        input.setRequiresGradient(true);
        long rows = input.getShape().get(0);
        context.beginForward(batch, rows, rows < batch, null);
        CollectiveCounts before = context.getCounts();
        RankPass pass = new RankPass();
        pass.output = block.forward(store, new NDList(input), true).singletonOrThrow();
        pass.layout = context.getPass().layoutOf(pass.output) != null;
        pass.forward = context.getCounts().minus(before);
        before = context.getCounts();
        Autograd.backward(pass.output, outputGradient);
        pass.backward = context.getCounts().minus(before);
        pass.inputGradient = Autograd.gradient(input);
        pass.store = store;
        return pass;
    }

    @SuppressWarnings("try") // a scope is used by being open
    private NDArray shard(Parameter parameter, ParallelContext context) {
        int ranks = context.getTensorGroup().getSize();
        int rank = context.getTensorGroup().getRank();
        NDArray whole = parameter.getArray();
        ShardingStrategy strategy = block.getShardingStrategy(parameter);
        try (Autograd.GradMode mode = Autograd.gradMode(false)) {
            if (strategy.isReplicated() || ranks == 1) {
                return whole.duplicate();
            }
            Shape local = strategy.shardShape(whole.getShape(), rank, ranks);
            NDArray shard = manager.create(local, whole.getDataType());
            strategy.scatterRows(whole, 0, whole.getShape(), shard, rank, ranks);
            return shard;
        }
    }

    /**
     * Returns a rank's output.
     *
     * @param rank the rank
     * @return the output
     */
    public NDArray output(int rank) {
        return passes.get(rank).output;
    }

    /**
     * Returns whether the layer said that its output is a slice of the features.
     *
     * @return whether the output has a layout
     */
    public boolean isOutputSharded() {
        return passes.get(0).layout;
    }

    /**
     * Returns a rank's gradient of its input.
     *
     * @param rank the rank
     * @return the gradient
     */
    public NDArray inputGradient(int rank) {
        return passes.get(rank).inputGradient;
    }

    /**
     * Returns a rank's value of a parameter.
     *
     * @param rank the rank
     * @param name the name of the parameter
     * @return the shard or replica
     */
    public NDArray value(int rank, String name) {
        return passes.get(rank).store.getValue(block.getDirectParameters().get(name), null, true);
    }

    /**
     * Returns a rank's gradient of a parameter.
     *
     * @param rank the rank
     * @param name the name of the parameter
     * @return the gradient of the shard or replica, or {@code null} if none was computed
     */
    public NDArray gradient(int rank, String name) {
        return Autograd.gradient(value(rank, name));
    }

    /**
     * Puts the ranks' gradients of a parameter together that is cut.
     *
     * @param name the name of the parameter
     * @return the whole gradient
     */
    public NDArray gatheredGradient(String name) {
        Parameter parameter = block.getDirectParameters().get(name);
        ShardingStrategy strategy = block.getShardingStrategy(parameter);
        NDArray whole = manager.zeros(parameter.getShape(), DataType.FLOAT32);
        for (int rank = 0; rank < size; rank++) {
            strategy.gather(gradient(rank, name), whole, rank, size);
        }
        return whole;
    }

    /**
     * Returns what rank 0 communicated in the forward pass.
     *
     * @return the counts
     */
    public CollectiveCounts forwardCounts() {
        return passes.get(0).forward;
    }

    /**
     * Returns what rank 0 communicated in the backward pass.
     *
     * @return the counts
     */
    public CollectiveCounts backwardCounts() {
        return passes.get(0).backward;
    }

    /** One rank's pass. */
    private static final class RankPass {
        private RankParameterStore store;
        private NDArray output;
        private boolean layout;
        private NDArray inputGradient;
        private CollectiveCounts forward;
        private CollectiveCounts backward;
    }
}
