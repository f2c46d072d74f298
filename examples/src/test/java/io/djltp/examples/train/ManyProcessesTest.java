package io.djltp.examples.train;

import ai.djl.util.Utils;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import io.djltp.examples.ForkedTp;
import io.djltp.examples.FreePort;
import io.djltp.examples.JobVariables;
import io.djltp.examples.TpRun;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** {@code tp train} in several processes learns what it learns in one, bit for bit. */
public class ManyProcessesTest {

    private static final double TOLERANCE = 1e-6; // of the order in which ranks add

    private final Map<String, JsonObject> expected = new HashMap<>();
    private Path folder;

    @BeforeClass
    public void createFolder() throws IOException {
        folder = Files.createTempDirectory("tp-processes");
    }

    @AfterClass
    public void deleteFolder() {
        Utils.deleteQuietly(folder);
    }

    @DataProvider
    public Object[][] modes() {
        return new Object[][] {{"tensor"}, {"2x2"}};
    }

    @DataProvider
    public Object[][] otherModes() {
        return new Object[][] {{"mixed"}, {"data"}};
    }

    @Test(groups = "sweep", dataProvider = "otherModes", timeOut = 240_000)
    public void twoProcessesInOtherModes(String mode) throws Exception {
        twoProcessesOfTwoRanks(mode);
    }

    @Test(dataProvider = "modes", timeOut = 240_000)
    public void twoProcessesOfTwoRanks(String mode) throws Exception {
        int port = FreePort.find();
        List<ForkedTp> processes = new ArrayList<>();
        List<ForkedTp.Result> results = new ArrayList<>();
        try {
            for (int i = 0; i < 2; i++) {
                processes.add(
                        ForkedTp.start(
                                JobVariables.of(i, 2, port), arguments(mode, 4, "env-" + i)));
            }
            for (ForkedTp process : processes) {
                results.add(process.await());
            }
        } finally {
            for (ForkedTp process : processes) {
                process.close();
            }
        }
        Assert.assertEquals(results.get(0).status(), 0, results.toString());
        Assert.assertEquals(results.get(1).status(), 0, results.toString());
        Assert.assertTrue(results.get(0).out().contains("100 held-out words"), results.toString());
        Assert.assertEquals(results.get(1).out() + results.get(1).err(), "");
        Assert.assertFalse(Files.exists(json("env-1", mode)), "only process 0 writes --json");
        Assert.assertFalse(
                Files.exists(out("env-1", mode).resolve("lemma.properties")),
                "only process 0 saves the model");
        assertSame(mode, 4, "env-0");
        assertSameModel(mode, 4, "env-0");
    }

    @Test(timeOut = 240_000)
    public void twoProcessesOfMpirun() throws Exception {
        runByMpirun(2, "tensor");
    }

    @Test(groups = "sweep", timeOut = 240_000)
    public void fourProcessesOfMpirun() throws Exception {
        runByMpirun(4, "mixed");
    }

    private void runByMpirun(int size, String mode) throws Exception {
        String name = "mpi-" + size;
        ForkedTp.Result result;
        try (ForkedTp process = ForkedTp.mpirun(size, arguments(mode, size, name))) {
            result = process.await();
        }
        Assert.assertEquals(result.status(), 0, result.toString());
        for (String once : List.of("Reading the", "Training ", "The model is saved")) {
            long lines = result.out().lines().filter(line -> line.startsWith(once)).count();
            Assert.assertEquals(lines, 1, once + " in " + result);
        }
        assertSame(mode, size, name);
    }

    private List<String> arguments(String mode, int ranks, String name) {
        String shared = Character.isDigit(mode.charAt(0)) ? " --mesh " : " --mode ";
        String line =
                "train --steps 5 --dim 8 --batch 32 --seed 7 --timeout 60 --drift-check 2"
                        + " --held-out 100 --tp "
                        + ranks
                        + shared
                        + mode
                        + " --out "
                        + out(name, mode)
                        + " --json "
                        + json(name, mode);
        return List.of(line.split(" "));
    }

    private Path out(String name, String mode) {
        return folder.resolve(name + "-" + mode);
    }

    private Path json(String name, String mode) {
        return folder.resolve(name + "-" + mode + ".json");
    }

    /** Compares with ranks of one process. */
    private void assertSame(String mode, int ranks, String name) throws IOException {
        JsonObject one = expected(mode, ranks);
        JsonObject many = TpRun.json(json(name, mode));
        for (String figure : List.of("classes", "ranks", "mode", "mesh", "steps", "top1", "top5")) {
            Assert.assertEquals(many.get(figure), one.get(figure), figure);
        }
        List<JsonElement> losses = one.get("loss").getAsJsonArray().asList();
        List<JsonElement> others = many.get("loss").getAsJsonArray().asList();
        Assert.assertEquals(others.size(), 5);
        for (int i = 0; i < losses.size(); i++) {
            double loss = losses.get(i).getAsDouble();
            Assert.assertEquals(others.get(i).getAsDouble(), loss, TOLERANCE * loss, "step " + i);
        }
    }

    private void assertSameModel(String mode, int ranks, String name) throws IOException {
        for (String file : List.of("lemma-0000.params", "lemma.lexicon.tsv")) {
            long difference =
                    Files.mismatch(
                            out("one-" + ranks, mode).resolve(file), out(name, mode).resolve(file));
            Assert.assertEquals(difference, -1, file + " differs");
        }
    }

    private JsonObject expected(String mode, int ranks) throws IOException {
        String key = mode + ranks;
        if (!expected.containsKey(key)) {
            String name = "one-" + ranks;
            TpRun run = TpRun.of(arguments(mode, ranks, name).toArray(String[]::new));
            run.assertPrints(0);
            expected.put(key, TpRun.json(json(name, mode)));
        }
        return expected.get(key);
    }
}
