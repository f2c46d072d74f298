package io.djltp.checkpoint.store;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonObject;

import io.djltp.cut.ShardRange;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.IntStream;

/** Checkpoints of whole arrays, cut for the tests as they are told to be. */
final class Checkpoints {

    private Checkpoints() {}

    /** Returns an array of random bits, which as numbers may be NaN. */
    static NDArray random(NDManager manager, DataType type, Shape shape, Random random) {
        byte[] bytes = new byte[Math.toIntExact(shape.size() * type.getNumOfBytes())];
        random.nextBytes(bytes);
        if (type == DataType.BOOLEAN) {
            for (int i = 0; i < bytes.length; i++) {
                bytes[i] &= 1;
            }
        }
        return manager.create(ByteBuffer.wrap(bytes), shape, type);
    }

    /** Returns ranges of an axis of an array, one after another. */
    static NDArray slice(NDArray whole, int axis, List<ShardRange> ranges) {
        NDList pieces = new NDList();
        for (ShardRange range : ranges) {
            StringBuilder index = new StringBuilder();
            for (int i = 0; i < axis; i++) {
                index.append(":, ");
            }
            if (range.length() > 0) {
                index.append(range.start()).append(':').append(range.end());
                pieces.add(whole.get(new NDIndex(index.toString())));
            }
        }
        if (pieces.isEmpty()) {
            long[] shape = whole.getShape().getShape().clone();
            shape[axis] = 0;
            return whole.getManager().create(new Shape(shape), whole.getDataType());
        }
        return NDArrays.concat(pieces, axis).duplicate();
    }

    /** Writes a checkpoint as the only process of a run. */
    static void write(
            Path folder, long step, int parts, List<CutTensor> tensors, Map<String, NDArray> whole)
            throws IOException {
        JsonObject values = new JsonObject();
        values.addProperty("loss", 0.1 * step);
        try (CheckpointFolder checkpoints = CheckpointFolder.open(folder);
                CheckpointWriter writer =
                        checkpoints.begin(step, "tensor " + parts, parts, all(parts))) {
            put(writer, all(parts), tensors, whole);
            writer.stream();
            writer.finish(values);
        }
    }

    /** Declares tensors and puts the shards of some parts. */
    static void put(
            CheckpointWriter writer,
            List<Integer> own,
            List<CutTensor> tensors,
            Map<String, NDArray> whole) {
        tensors.forEach(writer::declare);
        for (CutTensor tensor : tensors) {
            NDArray array = whole.get(tensor.name());
            for (int part : own) {
                if (tensor.isWhole()) {
                    writer.put(tensor.name(), part, array);
                } else {
                    List<ShardRange> ranges = tensor.cut().getRanges(part);
                    writer.put(tensor.name(), part, slice(array, tensor.axis(), ranges));
                }
            }
        }
    }

    static List<Integer> all(int parts) {
        return new ArrayList<>(IntStream.range(0, parts).boxed().toList());
    }

    /** Returns the bits of an array. */
    static ByteBuffer bits(NDArray array) {
        return array.toByteBuffer();
    }
}
