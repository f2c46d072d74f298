package io.djltp.checkpoint;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonObject;

import io.djltp.collective.ForkedJvm;
import io.djltp.cut.Cut;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;

/**
 * A process that writes checkpoints of a tensor whose elements follow from the step: without DJL's
 * engine, so that it starts fast.
 *
 * <pre>
 *   FOLDER forever KEEP             a checkpoint a step, beginning after the newest
 *   FOLDER part P N STEP            the part P of N of a step, as a process that joins
 *   FOLDER hold                     has the folder until it is killed
 * </pre>
 */
final class StoreProcess {

    static final String NAME = "head/weight";
    static final int PARTS = 3;
    private static final long ROWS = 40_001;
    private static final int COLUMNS = 10;

    private StoreProcess() {}

    public static void main(String[] args) throws Exception {
        Path path = Path.of(args[0]);
        switch (args[1]) {
            case "forever":
                try (CheckpointFolder folder = CheckpointFolder.open(path)) {
                    writeForever(folder, Integer.parseInt(args[2]));
                }
                return;
            case "part":
                int parts = Integer.parseInt(args[3]);
                long step = Long.parseLong(args[4]);
                try (CheckpointFolder folder = CheckpointFolder.join(path)) {
                    write(folder, step, parts, List.of(Integer.parseInt(args[2])));
                }
                return;
            default:
                try (CheckpointFolder folder = CheckpointFolder.open(path)) {
                    System.out.println(folder.getPath());
                    Thread.sleep(600_000);
                }
        }
    }

    private static void writeForever(CheckpointFolder folder, int keep) throws IOException {
        List<Long> steps = folder.getSteps();
        for (long step = steps.isEmpty() ? 1 : steps.get(steps.size() - 1) + 1; ; step++) {
            write(folder, step, PARTS, Checkpoints.all(PARTS));
            folder.prune(keep);
        }
    }

    static CutTensor tensor(int parts) {
        Cut cut = Cut.balanced(ROWS, parts);
        return new CutTensor(NAME, DataType.INT32, new Shape(ROWS, COLUMNS), 0, cut);
    }

    static void write(CheckpointFolder folder, long step, int parts, List<Integer> own)
            throws IOException {
        JsonObject values = new JsonObject();
        values.addProperty("step", step);
        try (CheckpointWriter writer = folder.begin(step, "tensor " + parts, parts, own)) {
            add(writer, step, parts);
            writer.stream();
            writer.finish(values);
        }
    }

    static void add(CheckpointWriter writer, long step, int parts) {
        CutTensor tensor = tensor(parts);
        writer.add(
                tensor,
                part -> {
                    long first = tensor.cut().getRange(part).start() * COLUMNS;
                    long size = tensor.getShardShape(part).size();
                    return out -> out.write(elements(step, first, size));
                });
    }

    private static ByteBuffer elements(long step, long first, long size) {
        ByteBuffer bytes =
                ByteBuffer.allocate((int) size * Integer.BYTES).order(ByteOrder.LITTLE_ENDIAN);
        for (long i = first; i < first + size; i++) {
            bytes.putInt((int) (step * 1_000_003 + i));
        }
        return bytes.flip();
    }

    /** Returns whether a checkpoint has the elements and the values of its step. */
    static boolean isRight(Checkpoint checkpoint) throws IOException {
        CutTensor tensor = checkpoint.getTensor(NAME);
        long size = tensor.shape().size();
        ByteBuffer read = ByteBuffer.allocate((int) size * Integer.BYTES);
        checkpoint.newReader().read(tensor, 0, null, read.duplicate());
        return read.equals(elements(checkpoint.getStep(), 0, size))
                && checkpoint.getValues().get("step").getAsLong() == checkpoint.getStep();
    }

    /** Starts a process. */
    static Process start(Path output, Path folder, String... arguments) throws IOException {
        Files.deleteIfExists(output);
        String[] all =
                Stream.concat(Stream.of("" + folder), Stream.of(arguments)).toArray(String[]::new);
        return new ForkedJvm().option("-Xmx64m").builder(output, StoreProcess.class, all).start();
    }
}
