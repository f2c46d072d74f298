package io.djltp.examples.bench;

import ai.djl.Device;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;

import io.djltp.examples.TpRun;
import io.djltp.examples.bench.PeerOptions.PythonPeer;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.Test;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/** Peers of another language take turns with ours, and have the same figures. */
public class PeersTest {

    private static final boolean PYTORCH = PythonPeer.find(null, "head.py").isPresent();

    /** Returns the arguments with a step of each side, whose time is not what is tested. */
    private static String once(String line) {
        String floor = line.startsWith("collective") ? "" : " --floor-side 64";
        return "bench " + line + " --repeats 1 --warmup 0 --warmup-seconds 0" + floor;
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
        TpRun run =
                TpRun.withJson(
                        once(
                                "head --shapes 4x8x500 --optimizer adam --peers djl,pytorch"
                                        + " --precision float32"
                                        + (both ? ",bfloat16" : "")));
        JsonArray rows = run.figures().getAsJsonArray();
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
        TpRun run = TpRun.line(once("layer --batch 4 --width 8 --hidden 16 --peers pytorch"));
        run.assertPrints(0, "PyTorch ");
        Assert.assertFalse(run.output().contains("stock DJL "), run.output());
    }

    @Test(timeOut = 180_000)
    public void testGlooBetweenProcesses() {
        needPyTorch();
        TpRun run = TpRun.line(once("collective --ranks 2 --bytes 64 --peers all"));
        run.assertPrints(0, "gloo of PyTorch");
    }

    /** PyTorch has another Adagrad: what is measured of both has to be one step. */
    @Test(timeOut = 180_000)
    public void testNoPyTorchOfRowwiseAdagrad() throws IOException {
        needPyTorch();
        TpRun named = TpRun.line(once("head --optimizer adagrad,adamw --peers pytorch"));
        named.assertPrints(2, "--peers pytorch: PyTorch has no row-wise Adagrad");
        Assert.assertFalse(named.output().contains("Measuring"), named.output());
        TpRun all =
                TpRun.withJson(once("head --shapes 4x8x500 --optimizer adagrad,adamw --peers all"));
        all.assertPrints(
                0, "PyTorch is left out of adagrad", "with the row-wise Adagrad of this library");
        JsonArray rows = all.figures().getAsJsonArray();
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
        TpRun run = TpRun.line(once("head --shapes 4x8x500 --peers all --python /bin/false"));
        run.assertPrints(0, "PyTorch is left out: /bin/false does not have PyTorch");
    }
}
