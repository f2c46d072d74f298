package io.djltp.checkpoint.store;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonObject;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * Measures saving and loading of a head with momentum, rows x 128, on two ranks, in turns with dd
 * on the same disk: writing with {@code conv=fsync}; reading what is not in the page cache, what is
 * in it ("again"), and past it ("direct"). Loads are into the arrays that are there, as those of a
 * trainer, or into new ones, whose memory is touched for the first time.
 *
 * <pre>
 *   java -Xmx64m -cp .. io.djltp.checkpoint.store.StoreSpeed FOLDER ROWS ROUNDS
 * </pre>
 */
final class StoreSpeed {

    private static final int COLUMNS = 128;
    private static final int PARTS = 2;
    private static final List<String> NAMES = List.of("head/weight", "head/weight/momentum");

    private final Path root;
    private final long rows;
    private final double mib;
    private final Map<String, List<Double>> speeds = new TreeMap<>();

    private StoreSpeed(Path root, long rows) {
        this.root = root;
        this.rows = rows;
        mib = rows * COLUMNS * Float.BYTES * NAMES.size() / (double) (1 << 20);
    }

    public static void main(String[] args) throws Exception {
        StoreSpeed speed = new StoreSpeed(Path.of(args[0]), Long.parseLong(args[1]));
        speed.run(Integer.parseInt(args[2]));
    }

    private void run(int rounds) throws Exception {
        Path source = root.resolve("random"); // stays in the page cache
        shell("dd if=/dev/urandom of=" + source + " bs=1M count=" + (long) mib);
        Path raw = root.resolve("raw");
        try (NDManager manager = NDManager.newBaseManager()) {
            Map<String, NDArray> arrays = new TreeMap<>();
            for (CutTensor tensor : tensors()) {
                for (int part = 0; part < PARTS; part++) {
                    Shape shape = tensor.getShardShape(part);
                    arrays.put(tensor.name() + part, manager.randomNormal(shape));
                }
            }
            for (int round = 1; round <= rounds; round++) {
                int step = round;
                time("dd write", () -> shell("dd bs=4M conv=fsync if=" + source + " of=" + raw));
                long before = memory("VmRSS");
                shell("echo 5 > /proc/" + ProcessHandle.current().pid() + "/clear_refs");
                time("save", () -> save(step, arrays));
                System.out.printf(
                        "  memory: %d MiB more at most during the save%n",
                        memory("VmHWM") - before >> 10);
                Path saved = root.resolve(CheckpointFolder.nameOf(step));
                // read before it is dropped: the page cache has memory of the same kind for both
                time("dd again", () -> shell("dd bs=16M of=/dev/null if=" + raw));
                evict(raw);
                time("dd read", () -> shell("dd bs=16M of=/dev/null if=" + raw));
                time("dd direct", () -> shell("dd bs=16M iflag=direct of=/dev/null if=" + raw));
                load(saved, arrays);
                time("load again", () -> load(saved, arrays));
                evict(saved);
                time("load", () -> load(saved, arrays));
                evict(saved);
                time("load new", () -> load(saved, Map.of()));
                DurableFiles.removeFolder(saved);
            }
        } finally {
            Files.deleteIfExists(source);
            Files.deleteIfExists(raw);
        }
        for (String[] each :
                new String[][] {
                    {"save", "dd write"},
                    {"load", "dd read"},
                    {"load", "dd direct"},
                    {"load again", "dd again"},
                    {"load new", "dd read"}
                }) {
            List<Double> own = speeds.get(each[0]);
            List<Double> disk = speeds.get(each[1]);
            List<Double> ratios = new ArrayList<>();
            for (int i = 0; i < rounds; i++) {
                ratios.add(own.get(i) / disk.get(i));
            }
            ratios.sort(null);
            System.out.printf(
                    Locale.ROOT,
                    "%s: median %.2f of %s (%.2f to %.2f)%n",
                    each[0],
                    ratios.get(rounds / 2),
                    each[1],
                    ratios.get(0),
                    ratios.get(rounds - 1));
        }
    }

    private List<CutTensor> tensors() {
        Shape shape = new Shape(rows, COLUMNS);
        Cut cut = Cut.balanced(rows, PARTS);
        return NAMES.stream()
                .map(name -> new CutTensor(name, DataType.FLOAT32, shape, 0, cut))
                .toList();
    }

    private void save(long step, Map<String, NDArray> arrays) throws IOException {
        long begin = System.nanoTime();
        try (CheckpointFolder folder = CheckpointFolder.open(root);
                CheckpointWriter writer =
                        folder.begin(step, "tensor 2", PARTS, Checkpoints.all(PARTS))) {
            for (CutTensor tensor : tensors()) {
                writer.declare(tensor);
                for (int part = 0; part < PARTS; part++) {
                    writer.put(tensor.name(), part, arrays.get(tensor.name() + part));
                }
            }
            writer.stream();
            System.out.printf(
                    Locale.ROOT, "  streamed after %.2f s%n", (System.nanoTime() - begin) / 1e9);
            writer.finish(new JsonObject());
        }
    }

    /** Each rank reads its shards on a thread of its own, into arrays that are there or new. */
    private void load(Path saved, Map<String, NDArray> arrays) throws IOException {
        ExecutorService ranks = Executors.newFixedThreadPool(PARTS);
        try (Checkpoint checkpoint = Checkpoint.open(saved)) {
            List<Future<?>> done = new ArrayList<>();
            for (int rank = 0; rank < PARTS; rank++) {
                int part = rank;
                done.add(
                        ranks.submit(
                                () -> {
                                    load(checkpoint, part, arrays);
                                    return null;
                                }));
            }
            for (Future<?> each : done) {
                each.get();
            }
        } catch (InterruptedException | ExecutionException e) {
            throw new IOException(e);
        } finally {
            ranks.shutdown();
        }
    }

    private void load(Checkpoint checkpoint, int part, Map<String, NDArray> arrays)
            throws IOException {
        try (NDManager manager = NDManager.newBaseManager()) {
            for (CutTensor each : tensors()) {
                List<ShardRange> ranges = each.cut().getRanges(part);
                NDArray target = arrays.get(each.name() + part);
                if (target == null) {
                    checkpoint.read(each.name(), 0, ranges, manager);
                } else {
                    checkpoint.readInto(each.name(), 0, ranges, target);
                }
            }
        }
    }

    private interface Work {
        void run() throws IOException;
    }

    private void time(String what, Work work) throws IOException {
        long begin = System.nanoTime();
        Duration processor = processor();
        work.run();
        double seconds = (System.nanoTime() - begin) / 1e9;
        processor = processor().minus(processor);
        speeds.computeIfAbsent(what, key -> new ArrayList<>()).add(mib / seconds);
        System.out.printf(
                Locale.ROOT,
                "%-10s %6.2f s %7.0f MiB/s, %4.2f s of the processor%n",
                what,
                seconds,
                mib / seconds,
                processor.toMillis() / 1e3);
    }

    private static Duration processor() {
        return ProcessHandle.current().info().totalCpuDuration().orElse(Duration.ZERO);
    }

    private static long memory(String what) throws IOException {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith(what + ":")) {
                return Long.parseLong(line.replaceAll("\\D", ""));
            }
        }
        throw new IOException("no " + what);
    }

    /** Drops a file, or the parts of a checkpoint, from the page cache. */
    private static void evict(Path path) throws IOException {
        if (Files.isRegularFile(path)) {
            shell("sync " + path + "; dd if=" + path + " iflag=nocache count=0");
            return;
        }
        for (int part = 0; part < PARTS; part++) {
            evict(path.resolve(PartWriter.nameOf(part, PARTS)));
        }
    }

    private static void shell(String command) throws IOException {
        Process process =
                new ProcessBuilder("sh", "-c", command)
                        .redirectErrorStream(true)
                        .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                        .start();
        try {
            if (process.waitFor() != 0) {
                throw new IOException(command + " failed");
            }
        } catch (InterruptedException e) {
            throw new IOException(e);
        }
    }
}
