package io.djltp.examples.bench;

import ai.djl.Device;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import io.djltp.examples.OptimizerName;
import io.djltp.examples.TpRun;
import io.djltp.examples.bench.WorkerProcess.PythonPeer;
import io.djltp.examples.bench.Workload.Network;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;

/** {@code tp bench} measures in processes of its own and writes what it has promised. */
public class BenchCommandTest {
    private static final boolean PYTORCH = PythonPeer.find(null, "head.py").isPresent();
    private static final boolean BFLOAT16 = Precision.BFLOAT16.whyNot(Device.cpu()).isEmpty();
    private static final String OURS = "this library ";
    private static final String STOCK = "stock DJL ";
    private static final String FLOOR = "the floor ";

    /** The arguments, and side, shape, optimizer, precision and ranks of each line. */
    @DataProvider
    public static Object[][] benches() {
        String head = "4x8x500 adam float32 ";
        return new Object[][] {
            {
                "head --shapes 4x8x500 --loss softmax,one-vs-all --threads-per-rank 1",
                List.of(
                        OURS + "4x8x500 sgd float32 1 x 1",
                        OURS + "4x8x500 sgd float32 1 x 1 one-vs-all",
                        FLOOR + "4x8x500 sgd float32 -",
                        FLOOR + "4x8x500 sgd float32 - one-vs-all",
                        STOCK + "4x8x500 sgd float32 1 x 1",
                        STOCK + "4x8x500 sgd float32 1 x 1 one-vs-all")
            },
            {
                "head --shapes 8x16x5000 --ranks 1,2 --optimizer adam --threads 1,2",
                List.of(
                        OURS + "8x16x5000 adam float32 1 x 1",
                        OURS + "8x16x5000 adam float32 1 x 2",
                        OURS + "8x16x5000 adam float32 2 x 1",
                        OURS + "8x16x5000 adam float32 2 x 2",
                        FLOOR + "8x16x5000 adam float32 -",
                        STOCK + "8x16x5000 adam float32 1 x 1",
                        STOCK + "8x16x5000 adam float32 1 x 2")
            },
            {
                "layer --shapes 8x16x32 --ranks 1,2 --peers none --threads-per-rank 1",
                List.of(
                        OURS + "8x16x32 sgd float32 1 x 1",
                        OURS + "8x16x32 sgd float32 2 x 1",
                        FLOOR + "8x16x32 sgd float32 -")
            },
            {
                "transformer --ranks 1,2 --shapes 2x5x12x48 --heads 3 --threads-per-rank 1",
                List.of(
                        OURS + "2x5x12x48 sgd float32 1 x 1",
                        OURS + "2x5x12x48 sgd float32 2 x 1",
                        FLOOR + "2x5x12x48 sgd float32 -",
                        STOCK + "2x5x12x48 sgd float32 1 x 1")
            },
            {
                "collective --ranks 2 --bytes 64",
                List.of(
                        OURS + "64 all-reduce float32 2",
                        OURS + "64 all-gather float32 2",
                        OURS + "64 reduce-scatter float32 2",
                        "a copy 64 copy float32 2")
            },
            // the same ranks in two precisions are told apart
            {
                BFLOAT16 && PYTORCH
                        ? "head --shapes 4x8x500 --optimizer adam --peers djl,pytorch"
                                + " --threads-per-rank 1 --precision float32,bfloat16"
                        : "",
                List.of(
                        OURS + head + "1 x 1",
                        OURS + head.replace("float32", "bfloat16") + "1 x 1",
                        FLOOR + head + "-",
                        FLOOR + head.replace("float32", "bfloat16") + "-",
                        STOCK + head + "1 x 1",
                        "PyTorch " + head + "1 x 1")
            },
        };
    }

    @DataProvider
    public static Object[][] otherBenches() {
        return new Object[][] {
            {
                "step --shapes 8x4x3000 --threads-per-rank 1",
                List.of(
                        OURS + "8x4x3000 sgd float32 1 x 1",
                        FLOOR + "8x4x3000 sgd float32 -",
                        STOCK + "8x4x3000 sgd float32 1 x 1")
            },
            {
                PYTORCH ? "layer --shapes 4x8x16 --peers pytorch --threads-per-rank 1" : "",
                List.of(
                        OURS + "4x8x16 sgd float32 1 x 1",
                        FLOOR + "4x8x16 sgd float32 -",
                        "PyTorch 4x8x16 sgd float32 1 x 1")
            },
            {
                PYTORCH
                        ? "transformer --shapes 2x5x12x48 --heads 3 --peers pytorch"
                                + " --threads-per-rank 1"
                        : "",
                List.of(
                        OURS + "2x5x12x48 sgd float32 1 x 1",
                        FLOOR + "2x5x12x48 sgd float32 -",
                        "PyTorch 2x5x12x48 sgd float32 1 x 1")
            },
            {
                PYTORCH ? "update --shapes 3x8x16 --peers djl,pytorch --threads-per-rank 1" : "",
                List.of(
                        OURS + "3x8x16 sgd float32 1 x 1",
                        FLOOR + "3x8x16 sgd float32 -",
                        STOCK + "3x8x16 sgd float32 1 x 1",
                        "PyTorch 3x8x16 sgd float32 1 x 1")
            },
            {
                PYTORCH ? "collective --ranks 2 --bytes 64 --peers all" : "",
                List.of(
                        OURS + "64 all-reduce float32 2",
                        "gloo of PyTorch 64 all-reduce float32 2",
                        OURS + "64 all-gather float32 2",
                        OURS + "64 reduce-scatter float32 2",
                        "a copy 64 copy float32 2")
            },
        };
    }

    @Test(groups = "sweep", dataProvider = "otherBenches", timeOut = 360_000)
    public void everySideOfOthersHasALine(String line, List<String> expected) throws IOException {
        everySideHasALine(line, expected);
    }

    @Test(dataProvider = "benches", timeOut = 360_000)
    public void everySideHasALine(String line, List<String> expected) throws IOException {
        if (line.isEmpty()) {
            throw new SkipException(
                    "There is no bfloat16, or no PyTorch for Python: apt-get install python3-torch"
                            + " (650 MB)");
        }
        TpRun run = once(line);
        List<String> rows = new ArrayList<>();
        for (JsonElement each : run.figures().getAsJsonArray()) {
            JsonObject row = each.getAsJsonObject();
            Assert.assertEquals(row.get("name").getAsString(), line.split(" ")[0]);
            Assert.assertTrue(row.get("s").getAsDouble() > 0, row.toString());
            boolean floor = row.get("side").getAsString().equals("the floor");
            Assert.assertEquals(row.has("rss_bytes"), !floor);
            Assert.assertEquals(row.has("spread"), !floor);
            if (!floor) { // either has libtorch in its memory
                Assert.assertTrue(row.get("rss_bytes").getAsDouble() > 50e6, row.toString());
                Assert.assertEquals(row.get("spread").getAsDouble(), 0d, "of one value");
            }
            rows.add(describe(row));
        }
        Assert.assertEquals(rows, expected);
        Assert.assertTrue(run.output().contains("peak MB"), run.output());
    }

    /** Measures a step of each side, of cold code: what it takes is not what is tested. */
    private static TpRun once(String line) throws IOException {
        String floor = line.startsWith("collective") ? "" : " --floor-side 64";
        TpRun run = TpRun.withJson("bench " + line + " --repeats 1 --warmup-seconds 0" + floor);
        run.assertPrints(0, "The median of 1 repeats");
        return run;
    }

    private static String describe(JsonObject row) {
        String loss = row.has("loss") ? row.get("loss").getAsString() : "softmax";
        return List.of("side", "shape", "optimizer", "precision", "ranks").stream()
                        .map(name -> row.get(name).getAsString().replaceAll("(PyTorch) .*", "$1"))
                        .collect(Collectors.joining(" "))
                + (loss.equals("softmax") ? "" : " " + loss);
    }

    /** PyTorch has another Adagrad: what is measured of both has to be one step. */
    @Test(timeOut = 360_000)
    public void testNoPyTorchOfRowwiseAdagrad() throws IOException {
        if (!PYTORCH) {
            throw new SkipException("There is no PyTorch for Python");
        }
        TpRun named = TpRun.line("bench head --optimizer adagrad,adamw --peers pytorch");
        named.assertPrints(2, "--peers pytorch: PyTorch has no row-wise Adagrad");
        Assert.assertFalse(named.output().contains("Measuring"), named.output());
        TpRun all = once("head --shapes 4x8x500 --optimizer adagrad,adamw --peers all");
        all.assertPrints(
                0, "PyTorch is left out of adagrad", "with the row-wise Adagrad of this library");
        List<String> rows =
                all.figures().getAsJsonArray().asList().stream()
                        .map(row -> describe(row.getAsJsonObject()))
                        .filter(row -> row.startsWith("PyTorch"))
                        .toList();
        Assert.assertEquals(rows.size(), 1);
        Assert.assertTrue(rows.get(0).contains("adamw"), rows.toString());
    }

    @Test(timeOut = 240_000)
    public void testOfAllPeersOnlyThoseThatAreThere() throws IOException {
        once("head --shapes 4x8x500 --peers all --python /bin/false")
                .assertPrints(0, "PyTorch is left out: /bin/false does not have PyTorch");
    }

    @Test(timeOut = 240_000)
    public void testAProcessThatDiesEndsTheCommand() throws InterruptedException {
        Set<ProcessHandle> before = ProcessHandle.current().children().collect(Collectors.toSet());
        Thread killer =
                new Thread(
                        () -> {
                            Optional<ProcessHandle> victim = Optional.empty();
                            while (victim.isEmpty() && !Thread.currentThread().isInterrupted()) {
                                victim =
                                        ProcessHandle.current()
                                                .children()
                                                .filter(child -> !before.contains(child))
                                                .filter(BenchCommandTest::isWorker)
                                                .findAny();
                                LockSupport.parkNanos(1_000_000); // asking keeps a core busy
                            }
                            victim.ifPresent(ProcessHandle::destroyForcibly);
                        });
        killer.start();
        TpRun run = TpRun.line("bench layer --shapes 8x16x32 --peers none");
        killer.interrupt();
        killer.join();
        run.assertPrints(1, "tp: The process that measures", "has ended: status 137");
        Assert.assertTrue(ProcessHandle.current().children().allMatch(before::contains));
    }

    /** Not what starts it, which for a moment looks like this process. */
    private static boolean isWorker(ProcessHandle process) {
        return List.of(process.info().arguments().orElse(new String[0]))
                .contains(BenchWorker.class.getName());
    }

    @Test
    public void testSpreadIsTheDistanceOfTheQuartiles() {
        List<Double> values = List.of(5d, 1d, 4d, 2d, 3d);
        Assert.assertEquals(Samples.median(values), 3d, 1e-12);
        // the quartiles of 1..5 are 2 and 4, at most half a step away in other definitions
        Assert.assertEquals(Samples.spread(values), 2 / 3d, 1 / 3d);
        Assert.assertEquals(Samples.spread(List.of(2d, 2d, 2d)), 0d, 1e-12);
    }

    @Test
    public void testFloorIsTheLargerOfComputingAndMoving() {
        Workload head = Workload.parse(Network.HEAD, "64x128x1000", 0);
        // 6 x 64 x 128 x 1000 operations
        Floor slow = new Floor(Precision.FLOAT32, List.of(1e6, 2e6), List.of(1e12));
        Assert.assertEquals(slow.seconds(head, OptimizerName.SGD), 49.152e6 / 2e6, 1e-9);
        // the weight of 128,000 floats is moved 3 times, two arrays of state 2 times each
        Floor narrow = new Floor(Precision.FLOAT32, List.of(1e15), List.of(1e6));
        Assert.assertEquals(narrow.seconds(head, OptimizerName.SGD), 3 * 0.512, 1e-9);
        Assert.assertEquals(narrow.seconds(head, OptimizerName.ADAM), 7 * 0.512, 1e-9);
        String describes = "sgd, float32: ";
        Assert.assertTrue(narrow.describe(head, OptimizerName.SGD).contains(describes + "bytes"));
        Assert.assertTrue(
                slow.describe(head, OptimizerName.SGD).contains(describes + "operations"));
        // 4 blocks of two matrices
        Workload layer = Workload.parse(Network.LAYER, "64x128x1000", 0);
        Assert.assertEquals(slow.seconds(layer, OptimizerName.SGD), 8 * 49.152e6 / 2e6, 1e-9);
        // 5 weights and two arrays of state read and written, the gradients read
        Workload update = Workload.parse(Network.UPDATE, "5x20x10", 0);
        Assert.assertEquals(narrow.seconds(update, OptimizerName.ADAM), 7 * 4e-3, 1e-9);
    }
}
