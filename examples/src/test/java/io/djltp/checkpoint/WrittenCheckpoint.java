package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.CheckpointWriter.Source;
import io.djltp.cut.ShardRange;

import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;

/** Writes checkpoints of whole arrays, cut as they are told to be. */
public final class WrittenCheckpoint {

    private WrittenCheckpoint() {}

    /** Returns ranges of an axis of an array, one after another. */
    static NDArray slice(NDArray whole, int axis, List<ShardRange> ranges) {
        NDList pieces = new NDList();
        for (ShardRange range : ranges) {
            if (range.length() > 0) {
                String index = ":, ".repeat(axis) + range.start() + ":" + range.end();
                pieces.add(whole.get(new NDIndex(index)));
            }
        }
        if (pieces.isEmpty()) {
            long[] shape = whole.getShape().getShape().clone();
            shape[axis] = 0;
            return whole.getManager().create(new Shape(shape), whole.getDataType());
        }
        return NDArrays.concat(pieces, axis).duplicate();
    }

    /**
     * Writes a checkpoint as the only process of a run.
     *
     * @param folder the folder of checkpoints
     * @param step the step
     * @param parts the number of parts
     * @param tensors what the checkpoint holds
     * @param whole the whole arrays by name
     * @param values what else it holds
     * @throws IOException if it cannot be written
     */
    public static void write(
            Path folder,
            long step,
            int parts,
            List<CutTensor> tensors,
            Map<String, NDArray> whole,
            JsonObject values)
            throws IOException {
        try (CheckpointFolder checkpoints = CheckpointFolder.open(folder);
                CheckpointWriter writer =
                        checkpoints.begin(step, "tensor " + parts, parts, all(parts))) {
            for (CutTensor tensor : tensors) {
                NDArray array = whole.get(tensor.name());
                writer.add(tensor, part -> Source.of(tensor, part, shard(tensor, part, array)));
            }
            writer.stream();
            writer.finish(values);
        }
    }

    private static NDArray shard(CutTensor tensor, int part, NDArray whole) {
        return tensor.isWhole() ? whole : slice(whole, tensor.axis(), tensor.cut().getRanges(part));
    }

    static List<Integer> all(int parts) {
        return IntStream.range(0, parts).boxed().toList();
    }
}
