package io.djltp.examples.train;

import com.google.gson.JsonArray;

import io.djltp.examples.TpRun;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.nio.file.Files;
import java.nio.file.Path;

/** The lemmatiser learns the same through NCCL, here on its double, as in shared memory. */
public class NcclDoubleTrainTest {

    /** Returns how the ranks share the work. */
    @DataProvider
    public static Object[][] runs() {
        return new Object[][] {
            {"--mode mixed --tp 2"},
            {"--mode mixed --tp 4"},
            {"--mode tensor --tp 4"},
            {"--mode data --tp 2"},
            {"--mesh 2x3"},
        };
    }

    @Test(dataProvider = "runs", timeOut = 120_000)
    public void theLossesAreTheSame(String way) throws Exception {
        try {
            // part of the tests of the bridge, which only this run has on its class path
            Class.forName("io.djltp.internal.collective.nccl.NcclDouble")
                    .getMethod("load")
                    .invoke(null);
        } catch (InvocationTargetException e) {
            if (e.getCause() instanceof SkipException) {
                throw (SkipException) e.getCause();
            }
            throw e;
        }
        JsonArray local = losses("local", way);
        JsonArray nccl = losses("nccl", way);
        Assert.assertEquals(nccl.size(), 5);
        for (int i = 0; i < 5; i++) {
            double expected = local.get(i).getAsDouble();
            // NCCL adds in an order of its own
            Assert.assertEquals(nccl.get(i).getAsDouble(), expected, 1e-6 * expected, "" + i);
        }
    }

    private static JsonArray losses(String backend, String way) throws IOException {
        Path folder = Files.createDirectories(Path.of("target", "nccl-train"));
        Path json = folder.resolve("report.json");
        String command =
                "train --steps 5 --dim 8 --batch 32 --seed 7 --held-out 1 %s --backend %s"
                        + " --out %s --json %s";
        TpRun run = TpRun.of(command.formatted(way, backend, folder, json).split(" "));
        run.assertPrints(0);
        return TpRun.json(json).get("loss").getAsJsonArray();
    }
}
