package io.djltp.checkpoint.store;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonObject;

import io.djltp.cut.Cut;

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
 * on the same disk: writing with {@code conv=fsync}, reading what is not in the page cache.
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
                evict(raw);
                time("dd read", () -> shell("dd bs=4M of=/dev/null if=" + raw));
                Path saved = root.resolve(StepNames.complete(step));
                for (int part = 0; part < PARTS; part++) {
                    evict(saved.resolve(StepNames.part(part, PARTS)));
                }
                time("load", () -> load(saved));
                DurableFiles.removeFolder(saved);
            }
        } finally {
            Files.deleteIfExists(source);
            Files.deleteIfExists(raw);
        }
        for (String each : List.of("write save", "read load")) {
            List<Double> disk = speeds.get("dd " + each.split(" ")[0]);
            List<Double> own = speeds.get(each.split(" ")[1]);
            List<Double> ratios = new ArrayList<>();
            for (int i = 0; i < rounds; i++) {
                ratios.add(own.get(i) / disk.get(i));
            }
            ratios.sort(null);
            System.out.printf(
                    Locale.ROOT,
                    "%s: median %.2f of dd's speed (%.2f to %.2f)%n",
                    each.split(" ")[1],
                    ratios.get(rounds / 2),
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

    /** Each rank reads its shards on a thread of its own. */
    private void load(Path saved) throws IOException {
        ExecutorService ranks = Executors.newFixedThreadPool(PARTS);
        try (Checkpoint checkpoint = Checkpoint.open(saved)) {
            List<Future<?>> done = new ArrayList<>();
            for (int rank = 0; rank < PARTS; rank++) {
                int part = rank;
                done.add(
                        ranks.submit(
                                () -> {
                                    try (NDManager manager = NDManager.newBaseManager()) {
                                        for (CutTensor each : tensors()) {
                                            checkpoint.read(
                                                    each.name(),
                                                    0,
                                                    each.cut().getRanges(part),
                                                    manager);
                                        }
                                    }
                                    System.out.printf(
                                            "  rank %d waited %.2f s for a core%n",
                                            part, waited() / 1e9);
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

    /** Returns the nanoseconds that this thread could have run in, on a machine of its own. */
    private static long waited() throws IOException {
        return Long.parseLong(
                Files.readString(Path.of("/proc/thread-self/schedstat")).split(" ")[1]);
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
                "%-8s %6.2f s %7.0f MiB/s, %4.2f s of the processor%n",
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

    /** Drops a file from the page cache. */
    private static void evict(Path file) throws IOException {
        shell("sync " + file + "; dd if=" + file + " iflag=nocache count=0");
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
