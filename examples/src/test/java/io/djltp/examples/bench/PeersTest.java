package io.djltp.examples.bench;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonParser;

import io.djltp.examples.TpRun;

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
            throw new SkipException("needs PyTorch: apt-get install python3-torch");
        }
    }

    @Test(timeOut = 180_000)
    public void testAHeadOfPyTorch() throws IOException {
        needPyTorch();
        Path json = Files.createTempFile("peers", ".json");
        TpRun run =
                bench(
                        "head",
                        "--shapes",
                        "4x8x500",
                        "--optimizer",
                        "adam",
                        "--peers",
                        "djl,pytorch",
                        "--json",
                        json.toString());
        Assert.assertEquals(run.status(), 0, run.output());
        JsonArray sides =
                JsonParser.parseString(Files.readString(json))
                        .getAsJsonArray()
                        .get(0)
                        .getAsJsonObject()
                        .get("peers")
                        .getAsJsonArray();
        Files.delete(json);
        List<String> names = new ArrayList<>();
        for (JsonElement side : sides) {
            names.add(side.getAsJsonObject().get("side").getAsString().split(" [0-9]")[0]);
            Assert.assertTrue(side.getAsJsonObject().get("s").getAsDouble() > 0);
            Assert.assertTrue(side.getAsJsonObject().get("spread").getAsDouble() >= 0);
            // either has libtorch in its memory
            Assert.assertTrue(side.getAsJsonObject().get("rss_bytes").getAsDouble() > 50e6);
        }
        Assert.assertEquals(names, List.of("this library", "stock DJL", "PyTorch"));
        Assert.assertTrue(run.output().contains("peak MB"), run.output());
    }

    @Test(timeOut = 180_000)
    public void testLayersOfPyTorchWithoutStock() {
        needPyTorch();
        String[] small = {"layer", "--batch", "4", "--width", "8", "--hidden", "16"};
        List<String> options = new ArrayList<>(List.of(small));
        options.addAll(List.of("--peers", "pytorch"));
        TpRun run = bench(options.toArray(new String[0]));
        Assert.assertEquals(run.status(), 0, run.output());
        Assert.assertTrue(run.output().contains("PyTorch "), run.output());
        Assert.assertFalse(run.output().contains("stock DJL "), run.output());
    }

    @Test(timeOut = 180_000)
    public void testGlooBetweenProcesses() {
        needPyTorch();
        TpRun run = bench("collective", "--ranks", "2", "--bytes", "64", "--peers", "all");
        Assert.assertEquals(run.status(), 0, run.output());
        Assert.assertTrue(run.output().contains("gloo of PyTorch"), run.output());
    }

    @Test(timeOut = 60_000)
    public void testPyTorchThatWasNamedMustBeThere() {
        TpRun run = bench("head", "--peers", "pytorch", "--python", "/bin/false");
        Assert.assertEquals(run.status(), 2, run.output());
        Assert.assertTrue(
                run.output().contains("--peers pytorch: /bin/false does not have PyTorch"),
                run.output());
        TpRun none = bench("step", "--peers", "pytorch");
        Assert.assertEquals(none.status(), 2, none.output());
        Assert.assertTrue(none.output().contains("step has no PyTorch side"), none.output());
    }

    @Test(timeOut = 120_000)
    public void testOfAllPeersOnlyThoseThatAreThere() {
        TpRun run =
                bench("head", "--shapes", "4x8x500", "--peers", "all", "--python", "/bin/false");
        Assert.assertEquals(run.status(), 0, run.output());
        Assert.assertTrue(
                run.output().contains("PyTorch is left out: /bin/false does not have PyTorch"),
                run.output());
    }
}
