package io.djltp.examples.checkpoint;

import ai.djl.util.Utils;

import com.google.gson.JsonArray;

import io.djltp.examples.TpRun;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;

/**
 * A training goes on from its checkpoint in another number of parts, whatever its head and mesh.
 */
public class ReshardCommandTest {

    private static final String TRAIN = "train --dim 4 --batch 24 --seed 7 --held-out 1 --steps 4";
    private static final double TOLERANCE = 1e-5;

    private Path folder;

    @BeforeClass
    public void createFolder() throws IOException {
        folder = Files.createTempDirectory("tp-reshard");
    }

    @AfterClass(alwaysRun = true)
    public void deleteFolder() {
        Utils.deleteQuietly(folder);
    }

    @DataProvider
    public Object[][] trainings() {
        return new Object[][] {
            {"sampled", "--tp 2", 2, new int[] {1, 3, 4}},
            {"fused", "--mesh 2x2", 2, new int[] {3}},
            {"fused", "--mode mixed --tp 3", 3, new int[] {1, 4}},
            {"sampled", "--mode data --tp 2", 1, new int[] {3}},
            {"full", "--mode tensor --tp 2", 2, new int[] {3}}
        };
    }

    @Test(dataProvider = "trainings", timeOut = 600_000)
    public void itGoesOnAtEachNumberOfParts(String head, String ranks, int parts, int[] others)
            throws IOException {
        String training = TRAIN + " --head " + head + " ";
        Path run = folder.resolve(head + ranks.replace(" ", ""));
        JsonArray whole =
                losses(training + ranks + " --checkpoint-steps 2 --out " + run, run + ".json");
        for (int other : others) {
            Path out = folder.resolve(run.getFileName() + "-" + other);
            reshard(run, out, other);
            JsonArray resumed =
                    losses(training + "--tp " + other + " --resume --out " + out, out + ".json");
            for (int i = 0; i < whole.size(); i++) {
                double expected = whole.get(i).getAsDouble();
                double loss = resumed.get(i).getAsDouble();
                Assert.assertEquals(loss, expected, TOLERANCE * expected, other + ": step " + i);
            }
        }
        Path there = folder.resolve(run.getFileName() + "-there");
        Path back = folder.resolve(run.getFileName() + "-back");
        reshard(run, there, others[0]);
        reshard(there, back, parts);
        String resume = training + ranks + " --resume --out " + back;
        Assert.assertEquals(losses(resume, back + ".json"), whole, "there and back");
    }

    private static void reshard(Path from, Path to, int parts) {
        run(
                ("checkpoint reshard " + from + " --step 2 --ranks " + parts + " --out " + to)
                        + "/checkpoints");
        String verified = run("checkpoint verify " + to);
        Assert.assertTrue(verified.contains("is whole"), verified);
    }

    private static JsonArray losses(String arguments, String json) throws IOException {
        run(arguments + " --json " + json);
        return TpRun.json(Path.of(json)).getAsJsonArray("loss");
    }

    private static String run(String arguments) {
        String[] words = arguments.split(" ");
        TpRun run = TpRun.of(words);
        Assert.assertEquals(run.status(), 0, Arrays.toString(words) + ": " + run.output());
        return run.output();
    }
}
