package io.djltp.examples;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** Commands in several processes compute what they compute in one. */
public class ManyProcessesTest extends TestFolder {
    private static final String LM =
            "lm --layers 1 --width 16 --heads 4 --context 9 --batch 4 --steps 3 --characters 5";
    private static final String LM_FIGURES = "loss held_out_loss";
    private static final String TRAIN =
            "train --steps 5 --dim 8 --batch 32 --seed 7 --timeout 60 --drift-check 2" + " --out @";
    private static final String TRAIN_FIGURES = "loss classes ranks mode mesh steps validation";

    /** The command, where {@code @} is a folder; the number of processes; the figures. */
    @DataProvider
    public static Object[][] jobs() {
        return new Object[][] {
            // two ranks each, one of them with all the rows of a data group
            {LM + " --mesh 2x2 --sequence-parallel", 2, LM_FIGURES},
            {"embed sea --tp 2", 2, "vector"},
            {TRAIN + " --tp 4 --mesh 2x2", 2, TRAIN_FIGURES},
        };
    }

    @Test(dataProvider = "jobs", timeOut = 240_000)
    public void theJobComputesTheSame(String command, int processes, String figures)
            throws Exception {
        List<ForkedTp.Result> results =
                ForkedTp.job(JobVariables.ofAll(processes), i -> arguments(command, "" + i));
        for (int i = 0; i < processes; i++) { // only process 0 prints and writes
            Assert.assertEquals(results.get(i).status(), 0, results.toString());
            Assert.assertEquals(results.get(i).out().isEmpty(), i > 0, results.toString());
            Assert.assertEquals(Files.exists(folder.resolve(i + ".json")), i == 0);
            Assert.assertEquals(
                    Files.exists(folder.resolve(i + "/model.json")),
                    i == 0 && command.startsWith("train"));
        }
        assertSame(command, figures);
        if (command.startsWith("train")) {
            Assert.assertTrue(results.get(0).out().contains("4,000 rows with labels"));
            Assert.assertEquals(results.get(1).err(), "");
            for (String file : List.of("model.safetensors", "labels.txt")) {
                Path one = folder.resolve("one").resolve(file);
                Assert.assertEquals(Files.mismatch(one, folder.resolve("0").resolve(file)), -1);
            }
        }
    }

    @DataProvider
    public static Object[][] otherJobs() {
        return new Object[][] {
            // a rank each, which the heads cannot be divided by
            {LM + " --tp 3", 3, LM_FIGURES},
            {TRAIN + " --tp 4 --mode tensor", 2, TRAIN_FIGURES},
            {TRAIN + " --tp 4 --mode mixed", 2, TRAIN_FIGURES},
            {TRAIN + " --tp 4 --mode data", 2, TRAIN_FIGURES},
        };
    }

    @Test(groups = "sweep", dataProvider = "otherJobs", timeOut = 240_000)
    public void otherJobs(String command, int processes, String figures) throws Exception {
        theJobComputesTheSame(command, processes, figures);
    }

    @Test(timeOut = 240_000)
    public void mpirun() throws Exception {
        runByMpirun(2, "tensor");
    }

    @Test(groups = "sweep", timeOut = 240_000)
    public void fourProcessesOfMpirun() throws Exception {
        runByMpirun(4, "mixed");
    }

    private void runByMpirun(int size, String mode) throws Exception {
        String command = TRAIN + " --tp " + size + " --mode " + mode;
        ForkedTp.Result result;
        try (ForkedTp process =
                ForkedTp.mpirun(size, List.of(arguments(command, "0").split(" ")))) {
            result = process.await();
        }
        Assert.assertEquals(result.status(), 0, result.toString());
        for (String once : List.of("Reading the", "Training ", "The model is saved")) {
            long lines = result.out().lines().filter(line -> line.startsWith(once)).count();
            Assert.assertEquals(lines, 1, once + " in " + result);
        }
        assertSame(command, TRAIN_FIGURES);
    }

    private String arguments(String command, String name) {
        Path out = folder.resolve(name);
        return command.replace("@", out.toString()) + " --json " + out + ".json";
    }

    /** Compares with ranks of one process. */
    private void assertSame(String command, String figures) throws IOException {
        TpRun.line(arguments(command, "one")).assertPrints(0);
        for (String figure : figures.split(" ")) {
            JsonElement one = figure("one", figure);
            JsonElement many = figure("0", figure);
            if (figure.equals("loss") && command.startsWith("train")) {
                JsonArray losses = one.getAsJsonArray();
                Assert.assertEquals(many.getAsJsonArray().size(), losses.size());
                for (int i = 0; i < losses.size(); i++) { // ranks may add in another order
                    double loss = losses.get(i).getAsDouble();
                    double other = many.getAsJsonArray().get(i).getAsDouble();
                    Assert.assertEquals(other, loss, 1e-6 * loss, "step " + i);
                }
            } else {
                // sums of a group are in the order of its ranks, wherever they are
                Assert.assertEquals(many, one, figure);
            }
        }
    }

    private JsonElement figure(String name, String figure) throws IOException {
        JsonElement all = JsonParser.parseString(Files.readString(folder.resolve(name + ".json")));
        JsonObject first =
                (all.isJsonArray() ? all.getAsJsonArray().get(0) : all).getAsJsonObject();
        Assert.assertTrue(first.has(figure) || figure.matches("mode|mesh"), figure + " in " + all);
        return first.get(figure);
    }
}
