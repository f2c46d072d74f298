package io.djltp.exchange;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.checkpoint.TrainingState;
import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.checkpoint.store.CutTensor;
import io.djltp.cut.ShardRange;
import io.djltp.head.Margin;

import java.io.IOException;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The rows of a weight in a checkpoint, put together from its parts.
 *
 * @param checkpoint the checkpoint
 * @param tensor the weight
 * @param margin the margin of the head that has it, or {@code null}
 */
record CheckpointRows(Checkpoint checkpoint, CutTensor tensor, Margin margin) implements RowSource {

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
                                                key -> rows(checkpoint, key, margins.get(key)))));
        return paths;
    }

    private static CheckpointRows rows(Checkpoint checkpoint, String name, Margin margin) {
        return new CheckpointRows(checkpoint, checkpoint.getTensors().get(name), margin);
    }

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
