package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.util.Utils;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.CheckpointWriter.Source;
import io.djltp.cut.Cut;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.IntStream;

/**
 * Measures saving and loading of a weight, rows x 128, on two ranks, in turns with dd on the same
 * disk: writing with {@code conv=fsync}; reading what is not in the page cache. Loads are into the
 * arrays that are there, as those of a trainer.
 *
 * <pre>
 *   java -Xmx64m -cp .. io.djltp.checkpoint.StoreSpeed FOLDER ROWS ROUNDS
 * </pre>
 */
final class StoreSpeed {

    private static final int PARTS = 2;

    private final Map<String, List<Double>> seconds = new TreeMap<>();

    private StoreSpeed() {}

    /** What is measured. */
    private interface Work {
        void run() throws IOException;
    }

    public static void main(String[] args) throws IOException {
        new StoreSpeed().run(Path.of(args[0]), Long.parseLong(args[1]), Integer.parseInt(args[2]));
    }

    private void run(Path root, long rows, int rounds) throws IOException {
        Cut cut = Cut.balanced(rows, PARTS);
        CutTensor tensor = new CutTensor("w", DataType.FLOAT32, new Shape(rows, 128), 0, cut);
        double mib = tensor.shape().size() * Float.BYTES / (double) (1 << 20);
        Path raw = root.resolve("raw");
        Path source = root.resolve("random"); // stays in the page cache
        shell("dd if=/dev/urandom of=" + source + " bs=1M count=" + (long) mib);
        try (NDManager manager = NDManager.newBaseManager()) {
            List<NDArray> shards =
                    IntStream.range(0, PARTS)
                            .mapToObj(part -> manager.randomNormal(tensor.getShardShape(part)))
                            .toList();
            for (int step = 1; step <= rounds; step++) {
                Path saved = root.resolve("step-0000000" + step);
                time("dd write", () -> shell("dd bs=4M conv=fsync if=" + source + " of=" + raw));
                int round = step;
                time("save", () -> save(root, round, tensor, shards));
                shell("sync; dd iflag=nocache count=0 if=" + raw);
                time("dd read", () -> shell("dd bs=16M of=/dev/null if=" + raw));
                shell("for f in " + saved + "/*; do dd iflag=nocache count=0 if=$f; done");
                time("load", () -> load(saved, tensor, shards));
                Utils.deleteQuietly(saved);
            }
        }
        seconds.forEach(
                (what, times) -> {
                    times.sort(null);
                    System.out.printf(
                            "%s: median %.0f MiB/s (%.0f to %.0f)%n",
                            what,
                            mib / times.get(rounds / 2),
                            mib / times.get(rounds - 1),
                            mib / times.get(0));
                });
    }

    private static void save(Path root, long step, CutTensor tensor, List<NDArray> shards)
            throws IOException {
        try (CheckpointFolder folder = CheckpointFolder.open(root);
                CheckpointWriter writer =
                        folder.begin(step, "tensor 2", PARTS, Checkpoints.all(PARTS))) {
            writer.add(tensor, part -> Source.of(tensor, part, shards.get(part)));
            writer.stream();
            writer.finish(new JsonObject());
        }
    }

    /** Each rank reads its shard on a thread of its own. */
    private static void load(Path saved, CutTensor tensor, List<NDArray> shards)
            throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(saved)) {
            IntStream.range(0, PARTS)
                    .parallel()
                    .forEach(
                            part -> {
                                try {
                                    checkpoint.readInto(
                                            tensor.name(),
                                            0,
                                            tensor.cut().getRanges(part),
                                            shards.get(part));
                                } catch (IOException e) {
                                    throw new IllegalStateException(e);
                                }
                            });
        }
    }

    private void time(String what, Work work) throws IOException {
        long begin = System.nanoTime();
        work.run();
        double took = (System.nanoTime() - begin) / 1e9;
        seconds.computeIfAbsent(what, key -> new ArrayList<>()).add(took);
    }

    private static void shell(String command) throws IOException {
        try {
            Process process = new ProcessBuilder("sh", "-c", command).start();
            if (process.waitFor() != 0) {
                throw new IOException(command + " failed");
            }
        } catch (InterruptedException e) {
            throw new IOException(e);
        }
    }
}
