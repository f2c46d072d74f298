package io.djltp.exchange;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import io.djltp.checkpoint.TrainingState;
import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.checkpoint.store.CutTensor;
import io.djltp.cut.ShardRange;
import io.djltp.head.Margin;
import io.djltp.parameters.HeldParameters;
import io.djltp.parameters.WeightSource;
import io.djltp.torch.Autograd;

import java.io.IOException;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** A weight that can be read some rows (indices of axis 0) at a time. */
interface RowSource {

    /** Returns the shape. */
    Shape shape();

    /** Returns the data type. */
    DataType type();

    /** Returns the margin of the head that has it, or {@code null}. */
    Margin margin();

    /**
     * Reads consecutive rows.
     *
     * @param first the first row
     * @param count how many
     * @param manager the manager of the rows, in host memory
     * @return the rows, which may be the memory of the weight itself
     * @throws IOException if they cannot be read
     */
    NDArray rows(long first, long count, NDManager manager) throws IOException;

    /** Notes that no more rows are read for now. */
    default void release() {}

    /** Returns the sources of a tree, one for each parameter. */
    static Map<String, RowSource> of(Block block) {
        Map<String, Parameter> tree = ParameterPaths.of(block);
        Map<Parameter, Margin> margins = MarginNote.of(block);
        Map<Parameter, RowSource> sources = new IdentityHashMap<>();
        Map<String, RowSource> paths = new LinkedHashMap<>();
        tree.forEach(
                (path, parameter) -> {
                    if (!parameter.isInitialized()) {
                        throw new IllegalStateException(
                                "The parameter " + path + " has no values to write");
                    }
                    paths.put(
                            path,
                            sources.computeIfAbsent(
                                    parameter, key -> new ParameterRows(key, margins.get(key))));
                });
        return paths;
    }

    /** Returns the weights of a checkpoint, without what optimizers keep, by path. */
    static Map<String, RowSource> of(Checkpoint checkpoint) throws CheckpointException {
        Map<String, Margin> margins = TrainingState.getMargins(checkpoint);
        Map<String, RowSource> tensors = new HashMap<>(); // one each, also of what blocks share
        Map<String, RowSource> paths = new LinkedHashMap<>();
        ParameterPaths.of(checkpoint)
                .forEach(
                        (path, name) ->
                                paths.put(
                                        path,
                                        tensors.computeIfAbsent(
                                                name,
                                                key ->
                                                        new CheckpointRows(
                                                                checkpoint,
                                                                checkpoint.getTensors().get(key),
                                                                margins.get(key)))));
        return paths;
    }

    /**
     * The rows of a parameter: from the ranks that train it, or from the parameter itself.
     *
     * @param parameter the parameter
     * @param margin the margin of the head that has it, or {@code null}
     */
    record ParameterRows(Parameter parameter, Margin margin) implements RowSource {

        @Override
        public Shape shape() {
            return parameter.getArray().getShape();
        }

        @Override
        public DataType type() {
            return parameter.getArray().getDataType();
        }

        @Override
        public NDArray rows(long first, long count, NDManager manager) {
            WeightSource source = HeldParameters.sourceOf(parameter);
            if (source != null) {
                return source.rows(parameter, first, count, manager);
            }
            HeldParameters.checkWhole(parameter, "Writing the weights");
            if (shape().dimension() == 0) {
                return Autograd.detach(parameter.getArray(), manager);
            }
            try (NDArray view =
                    parameter.getArray().get(new NDIndex().addSliceDim(first, first + count))) {
                NDArray rows = Autograd.detach(view, manager).toDevice(Device.cpu(), false);
                rows.attach(manager);
                return rows;
            }
        }

        @Override
        public void release() {
            WeightSource source = HeldParameters.sourceOf(parameter);
            if (source != null) {
                source.release(parameter);
            }
        }
    }

    /**
     * The rows of a weight in a checkpoint, put together from its parts.
     *
     * @param checkpoint the checkpoint
     * @param tensor the weight
     * @param margin the margin of the head that has it, or {@code null}
     */
    record CheckpointRows(Checkpoint checkpoint, CutTensor tensor, Margin margin)
            implements RowSource {

        @Override
        public Shape shape() {
            return tensor.shape();
        }

        @Override
        public DataType type() {
            return tensor.type();
        }

        @Override
        public NDArray rows(long first, long count, NDManager manager) throws IOException {
            List<ShardRange> rows = List.of(new ShardRange(first, count));
            return checkpoint.read(tensor.name(), 0, rows, manager);
        }
    }
}
