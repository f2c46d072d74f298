package io.djltp.examples.bench;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import io.djltp.examples.TpRun;

import org.testng.Assert;
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

    private static final Set<String> ALL_FIELDS =
            Set.of(
                    ("name shape ranks optimizer precision ours_s stock_s floor_s ours_rss_bytes"
                                    + " stock_rss_bytes spread")
                            .split(" "));

    private static JsonArray run(String line) throws IOException {
        // one step of each, of cold code: what it takes is not what is tested
        String once = " --repeats 1 --warmup 0 --warmup-seconds 0";
        String floor = line.startsWith("collective") ? "" : " --floor-side 64";
        TpRun run = TpRun.withJson("bench " + line + once + floor);
        run.assertPrints(0, "The median of 1 repeats");
        return run.figures().getAsJsonArray();
    }

    private static double number(JsonElement row, String field) {
        return row.getAsJsonObject().get(field).getAsDouble();
    }

    @Test(timeOut = 120_000)
    public void testHeadWithEverySide() throws IOException {
        JsonArray rows = run("head --shapes 8x16x5000 --ranks 2 --optimizer adam");
        Assert.assertEquals(rows.size(), 1);
        JsonObject row = rows.get(0).getAsJsonObject();
        Assert.assertEquals(row.keySet(), ALL_FIELDS);
        Assert.assertEquals(row.get("name").getAsString(), "head");
        Assert.assertEquals(row.get("shape").getAsString(), "8x16x5000");
        Assert.assertEquals(row.get("optimizer").getAsString(), "adam");
        Assert.assertEquals(number(row, "ranks"), 2d);
        Assert.assertTrue(number(row, "ours_s") > 0);
        Assert.assertTrue(number(row, "stock_s") > 0);
        Assert.assertTrue(number(row, "floor_s") > 0);
        // a JVM with libtorch has more than this
        Assert.assertTrue(number(row, "ours_rss_bytes") > 100e6);
        Assert.assertTrue(number(row, "stock_rss_bytes") > 100e6);
        Assert.assertEquals(number(row, "spread"), 0d, "of one value");
    }

    @Test(timeOut = 120_000)
    public void testLayersOnSeveralRanksWithoutStock() throws IOException {
        JsonArray rows =
                run(
                        "layer --batch 8 --width 16 --hidden 32 --ranks 1,2 --no-stock"
                                + " --long-run 10");
        Assert.assertEquals(rows.size(), 2);
        Assert.assertEquals(number(rows.get(1), "ranks"), 2d);
        Assert.assertTrue(number(rows.get(1), "ours_s") > 0);
        Assert.assertFalse(rows.get(0).getAsJsonObject().has("stock_s"));
    }

    @Test(timeOut = 120_000)
    public void testALayerOfATransformer() throws IOException {
        JsonArray rows = run("transformer --ranks 1,2 --batch 2 --tokens 5 --width 12 --heads 3");
        Assert.assertEquals(rows.size(), 2);
        Assert.assertEquals(rows.get(1).getAsJsonObject().get("shape").getAsString(), "2x5x12x48");
        Assert.assertTrue(number(rows.get(1), "ours_s") > 0);
        Assert.assertTrue(number(rows.get(0), "stock_s") > 0);
    }

    @Test(timeOut = 120_000)
    public void testStepOfTheLemmatiser() throws IOException {
        JsonArray rows = run("step --batch 8 --dim 4 --classes 3000");
        Assert.assertEquals(rows.get(0).getAsJsonObject().keySet(), ALL_FIELDS);
        Assert.assertTrue(number(rows.get(0), "ours_s") > 0);
        Assert.assertTrue(number(rows.get(0), "stock_s") > 0);
    }

    @Test(timeOut = 120_000)
    public void testCollectives() throws IOException {
        JsonArray rows = run("collective --ranks 2,3 --bytes 64,4096");
        List<String> names = new ArrayList<>();
        for (JsonElement row : rows) {
            names.add(row.getAsJsonObject().get("name").getAsString());
            Assert.assertTrue(number(row, "ours_s") > 0);
            Assert.assertTrue(number(row, "floor_s") > 0);
        }
        List<String> expected = new ArrayList<>();
        for (int i = 0; i < 4; i++) { // numbers of ranks times sizes
            expected.addAll(List.of("all-reduce", "all-gather", "reduce-scatter"));
        }
        Assert.assertEquals(names, expected);
    }

    @Test(timeOut = 120_000)
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
                                                .filter(
                                                        child ->
                                                                !before.contains(child)
                                                                        && isWorker(child))
                                                .findAny();
                                LockSupport.parkNanos(1_000_000); // asking keeps a core busy
                            }
                            victim.ifPresent(ProcessHandle::destroyForcibly);
                        });
        killer.start();
        TpRun run = TpRun.line("bench layer --batch 8 --width 16 --no-stock");
        killer.interrupt();
        killer.join();
        run.assertPrints(1, "tp: The process that measures", "has ended: status 137");
        Assert.assertEquals(ProcessHandle.current().children().collect(Collectors.toSet()), before);
    }

    /** Not what starts it, which for a moment looks like this process. */
    private static boolean isWorker(ProcessHandle process) {
        return List.of(process.info().arguments().orElse(new String[0]))
                .contains(BenchWorker.class.getName());
    }
}
