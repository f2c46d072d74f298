package io.djltp.exchange;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import io.djltp.head.Margin;
import io.djltp.parameters.HeldParameters;
import io.djltp.parameters.WeightSource;
import io.djltp.torch.Autograd;

import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The rows of a parameter: from the ranks that train it, or from the parameter itself.
 *
 * @param parameter the parameter
 * @param margin the margin of the head that has it, or {@code null}
 */
record ParameterRows(Parameter parameter, Margin margin) implements RowSource {

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
