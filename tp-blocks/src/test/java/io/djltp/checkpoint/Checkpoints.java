package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.CheckpointWriter.Source;
import io.djltp.cut.ShardRange;

import org.testng.Assert;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.WritableByteChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.IntStream;

/** Checkpoints of whole arrays, cut for the tests as they are told to be, and how they break. */
public final class Checkpoints {

    private static final int SHORT_WRITE = 100_000; // less than a block

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

    /** Returns the bits of an array. */
    static ByteBuffer bits(NDArray array) {
        return array.toByteBuffer();
    }

    /** Asserts that two folders have the same tensors of a step, whatever their cuts. */
    static void assertSame(Path expected, Path actual, long step, String what) throws IOException {
        try (Checkpoint a = CheckpointFolder.read(expected).openStep(step);
                Checkpoint b = CheckpointFolder.read(actual).openStep(step);
                NDManager manager = NDManager.newBaseManager()) {
            Assert.assertEquals(b.getTensors().keySet(), a.getTensors().keySet(), what);
            for (String name : a.getTensors().keySet()) {
                Assert.assertEquals(
                        bits(b.read(name, manager)), bits(a.read(name, manager)), what + name);
            }
        }
    }

    /** Writes an index with its right checksum: what another version may have written. */
    static void writeIndex(Path step, String index) throws IOException {
        byte[] bytes = index.getBytes(StandardCharsets.UTF_8);
        Files.write(step.resolve(CheckpointIndex.FILE), bytes);
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(bytes);
            Files.writeString(
                    step.resolve(CheckpointIndex.CHECKSUM_FILE),
                    HexFormat.of().formatHex(digest) + "  index.json\n");
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }

    /** What is done before bytes are written. */
    @FunctionalInterface
    interface Before {
        void write(long bytes) throws IOException;
    }

    /** Sets what is done before each write to a folder, which is a short one. */
    static void beforeWrites(CheckpointFolder folder, Before before) {
        folder.output =
                out ->
                        new WritableByteChannel() {
                            @Override
                            public int write(ByteBuffer bytes) throws IOException {
                                int count = Math.min(bytes.remaining(), SHORT_WRITE);
                                before.write(count);
                                ByteBuffer some = bytes.slice(bytes.position(), count);
                                while (some.hasRemaining()) {
                                    out.write(some);
                                }
                                bytes.position(bytes.position() + count);
                                return count;
                            }

                            @Override
                            public boolean isOpen() {
                                return out.isOpen();
                            }

                            @Override
                            public void close() throws IOException {
                                out.close();
                            }
                        };
    }
}
