package io.djltp.examples.bench;

import ai.djl.Device;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonParser;

import io.djltp.examples.TpRun;
import io.djltp.examples.bench.PeerOptions.PythonPeer;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** Peers of another language take turns with ours, and have the same figures. */
public class PeersTest {

    private static final List<String> ONCE =
            List.of("--repeats", "1", "--warmup", "0", "--warmup-seconds", "0");

    private static final boolean PYTORCH = PythonPeer.find(null, "head.py").isPresent();

    private static TpRun bench(String... options) {
        List<String> args = new ArrayList<>(List.of("bench"));
        args.addAll(List.of(options));
        args.addAll(ONCE);
        if (!options[0].equals("collective")) {
            args.addAll(List.of("--floor-side", "64"));
        }
        return TpRun.of(args.toArray(new String[0]));
    }

    private static void needPyTorch() {
        if (!PYTORCH) {
            throw new SkipException(
                    "There is no PyTorch for Python: apt-get install python3-torch (650 MB)");
        }
    }

    /** The same ranks in two precisions are told apart, in the table and in JSON. */
    @Test(timeOut = 180_000)
    public void testAHeadOfPyTorchBesideOursInTwoPrecisions() throws IOException {
        needPyTorch();
        boolean both = Precision.BFLOAT16.whyNot(Device.cpu()).isEmpty();
        Path json = Files.createTempFile("peers", ".json");
        TpRun run =
                bench(
                        "head",
                        "--shapes",
                        "4x8x500",
                        "--optimizer",
                        "adam",
                        "--precision",
                        both ? "float32,bfloat16" : "float32",
                        "--peers",
                        "djl,pytorch",
                        "--json",
                        json.toString());
        run.assertPrints(0);
        JsonArray rows = JsonParser.parseString(Files.readString(json)).getAsJsonArray();
        Files.delete(json);
        List<String> precisions = new ArrayList<>();
        for (JsonElement row : rows) {
            for (JsonElement side : row.getAsJsonObject().getAsJsonArray("peers")) {
                precisions.add(side.getAsJsonObject().get("precision").getAsString());
                Assert.assertTrue(side.getAsJsonObject().get("s").getAsDouble() > 0);
                Assert.assertTrue(side.getAsJsonObject().get("spread").getAsDouble() >= 0);
                // either has libtorch in its memory
                Assert.assertTrue(side.getAsJsonObject().get("rss_bytes").getAsDouble() > 50e6);
            }
        }
        Assert.assertEquals(sides(rows.get(0)), List.of("this library", "stock DJL", "PyTorch"));
        Assert.assertTrue(run.output().contains("peak MB"), run.output());
        if (!both) {
            throw new SkipException("needs a processor with bfloat16");
        }
        Assert.assertEquals(precisions, List.of("float32", "float32", "float32", "bfloat16"));
        List<String> table =
                run.output().lines().filter(line -> line.startsWith("this library")).toList();
        Assert.assertEquals(table.size(), 2, run.output());
        Assert.assertTrue(table.get(0).contains(" float32 "), run.output());
        Assert.assertTrue(table.get(1).contains(" bfloat16 "), run.output());
    }

    @Test(timeOut = 180_000)
    public void testLayersOfPyTorchWithoutStock() {
        needPyTorch();
        String[] small = {"layer", "--batch", "4", "--width", "8", "--hidden", "16"};
        List<String> options = new ArrayList<>(List.of(small));
        options.addAll(List.of("--peers", "pytorch"));
        TpRun run = bench(options.toArray(new String[0]));
        run.assertPrints(0, "PyTorch ");
        Assert.assertFalse(run.output().contains("stock DJL "), run.output());
    }

    @Test(timeOut = 180_000)
    public void testGlooBetweenProcesses() {
        needPyTorch();
        TpRun run = bench("collective", "--ranks", "2", "--bytes", "64", "--peers", "all");
        run.assertPrints(0, "gloo of PyTorch");
    }

    /** PyTorch has another Adagrad: what is measured of both has to be one step. */
    @Test(timeOut = 180_000)
    public void testNoPyTorchOfRowwiseAdagrad() throws IOException {
        needPyTorch();
        TpRun named = bench("head", "--optimizer", "adagrad,adamw", "--peers", "pytorch");
        named.assertPrints(2, "--peers pytorch: PyTorch has no row-wise Adagrad");
        Assert.assertFalse(named.output().contains("Measuring"), named.output());
        Path json = Files.createTempFile("peers", ".json");
        TpRun all =
                bench(
                        "head",
                        "--shapes",
                        "4x8x500",
                        "--optimizer",
                        "adagrad,adamw",
                        "--peers",
                        "all",
                        "--json",
                        json.toString());
        all.assertPrints(
                0, "PyTorch is left out of adagrad", "with the row-wise Adagrad of this library");
        JsonArray rows = JsonParser.parseString(Files.readString(json)).getAsJsonArray();
        Files.delete(json);
        Assert.assertEquals(sides(rows.get(0)), List.of("this library", "stock DJL"));
        Assert.assertEquals(sides(rows.get(1)), List.of("this library", "stock DJL", "PyTorch"));
    }

    private static List<String> sides(JsonElement row) {
        List<String> names = new ArrayList<>();
        for (JsonElement side : row.getAsJsonObject().getAsJsonArray("peers")) {
            names.add(side.getAsJsonObject().get("side").getAsString().split(" [0-9]")[0]);
        }
        return names;
    }

    @Test(timeOut = 120_000)
    public void testOfAllPeersOnlyThoseThatAreThere() {
        TpRun run =
                bench("head", "--shapes", "4x8x500", "--peers", "all", "--python", "/bin/false");
        run.assertPrints(0, "PyTorch is left out: /bin/false does not have PyTorch");
    }
}
