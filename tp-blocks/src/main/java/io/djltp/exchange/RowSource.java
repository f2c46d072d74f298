package io.djltp.exchange;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import io.djltp.checkpoint.Checkpoint;
import io.djltp.checkpoint.CheckpointException;
import io.djltp.checkpoint.CutTensor;
import io.djltp.cut.ShardRange;
import io.djltp.head.Margin;
import io.djltp.internal.torch.Autograd;
import io.djltp.parameters.HeldParameters;
import io.djltp.parameters.WeightSource;

import java.io.IOException;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A weight that can be read some rows (indices of axis 0) at a time.
 *
 * @param shape its shape
 * @param type its data type
 * @param margin the margin of the head that has it, or {@code null}
 * @param reader reads rows
 * @param release is run when no more rows are read for now
 */
record RowSource(Shape shape, DataType type, Margin margin, Reader reader, Runnable release) {

    /** Reads consecutive rows. */
    @FunctionalInterface
    interface Reader {

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
    }

    /** Returns the sources of a tree, one for each parameter. */
    static Map<String, RowSource> of(Block block) {
        Map<Parameter, Margin> margins = MarginNote.of(block);
        Map<Parameter, RowSource> sources = new IdentityHashMap<>();
        Map<String, RowSource> paths = new LinkedHashMap<>();
        ParameterPaths.of(block)
                .forEach(
                        (path, parameter) -> {
                            if (!parameter.isInitialized()) {
                                throw new IllegalStateException(
                                        "The parameter " + path + " has no values to write");
                            }
                            paths.put(
                                    path,
                                    sources.computeIfAbsent(
                                            parameter, key -> of(key, margins.get(key))));
                        });
        return paths;
    }

    /** Returns the weights of a checkpoint, without what optimizers keep, by path. */
    static Map<String, RowSource> of(Checkpoint checkpoint) throws CheckpointException {
        Map<String, Margin> margins = checkpoint.getMargins();
        Map<String, RowSource> tensors = new HashMap<>(); // one each, also of what blocks share
        Map<String, RowSource> paths = new LinkedHashMap<>();
        ParameterPaths.of(checkpoint)
                .forEach(
                        (path, name) ->
                                paths.put(
                                        path,
                                        tensors.computeIfAbsent(
                                                name,
                                                key -> of(checkpoint, key, margins.get(key)))));
        return paths;
    }

    private static RowSource of(Checkpoint checkpoint, String name, Margin margin) {
        CutTensor tensor = checkpoint.getTensors().get(name);
        return new RowSource(
                tensor.shape(),
                tensor.type(),
                margin,
                (first, count, manager) ->
                        checkpoint.read(name, 0, List.of(new ShardRange(first, count)), manager),
                () -> {});
    }

    /** Returns the source of a parameter: the ranks that train it, or the parameter itself. */
    static RowSource of(Parameter parameter, Margin margin) {
        return new RowSource(
                parameter.getArray().getShape(),
                parameter.getArray().getDataType(),
                margin,
                (first, count, manager) -> rows(parameter, first, count, manager),
                () -> {
                    WeightSource source = HeldParameters.sourceOf(parameter);
                    if (source != null) {
                        source.release(parameter);
                    }
                });
    }

    private static NDArray rows(Parameter parameter, long first, long count, NDManager manager) {
        WeightSource source = HeldParameters.sourceOf(parameter);
        if (source != null) {
            return source.rows(parameter, first, count, manager);
        }
        HeldParameters.checkWhole(parameter, "Writing the weights");
        NDArray array = parameter.getArray();
        if (array.getShape().dimension() == 0) {
            return Autograd.detach(array, manager);
        }
        try (NDArray view = array.get(new NDIndex().addSliceDim(first, first + count))) {
            NDArray rows = Autograd.detach(view, manager).toDevice(Device.cpu(), false);
            rows.attach(manager);
            return rows;
        }
    }
}
