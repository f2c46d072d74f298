package io.djltp.examples.train;

import ai.djl.Device;

import com.google.gson.JsonObject;

import io.djltp.examples.ForkedTp;
import io.djltp.examples.JobVariables;
import io.djltp.examples.TpRun;
import io.djltp.testing.FreePort;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** {@code tp train} and {@code tp lm} are stopped by signals, and go on where they were. */
public class CheckpointCommandTest {

    private static final String LM =
            "lm --layers 1 --width 8 --heads 2 --context 5 --batch 4 --characters 3 --tp 2"
                    + " --steps 200";
    private static final String TRAIN =
            "train --tp 2 --dim 4 --batch 64 --steps 40 --checkpoint-steps 7";

    private final Path folder = TestFolder.create();

    private TpRun run(String arguments) {
        return TpRun.of(words(arguments));
    }

    /** {@code @} stands for the folder of the test. */
    private String[] words(String arguments) {
        return arguments.replace("@", folder + "/").split(" ");
    }

    /** Two processes, of which one gets the signal; then one process of two ranks. */
    @Test(timeOut = 600_000)
    public void languageModelOfTwoProcesses() throws Exception {
        TpRun whole = run(LM + " --json @whole.json");
        whole.assertPrints(0);
        String arguments = LM + " --out @lm --checkpoint-steps 20";
        int port = FreePort.find();
        try (ForkedTp first = start(arguments, 0, port);
                ForkedTp second = start(arguments, 1, port)) {
            while (!Files.exists(folder.resolve("lm/checkpoints/step-00000020"))) {
                Assert.assertTrue(first.isAlive(), "" + Files.exists(folder.resolve("lm")));
                Thread.sleep(10);
            }
            ForkedTp.Result stopped = second.stop();
            Assert.assertEquals(stopped.status(), 143, stopped.toString());
            ForkedTp.Result other = first.await();
            Assert.assertEquals(other.status(), 143, other.toString());
            String message = other.err();
            Assert.assertTrue(message.contains("tp: SIGTERM has ended the training"), message);
            Assert.assertTrue(
                    message.contains("Go on with: ./tp " + String.join(" ", words(arguments))),
                    message);
            Assert.assertTrue(message.contains("--checkpoint-steps 20 --resume"), message);
        }
        TpRun refused = run(arguments);
        refused.assertPrints(2, "--resume goes on from it");
        TpRun other = run(arguments + " --resume --seed 7");
        other.assertPrints(2, "--seed was 42 and is 7");
        TpRun resumed = run(arguments + " --resume --json @resumed.json");
        resumed.assertPrints(0, "Going on after step ");
        assertSame("loss", "held_out_loss", "sample", "steps", "collectives");
        Files.delete(folder.resolve("lm/checkpoints/step-00000200/index.json"));
        TpRun damaged = run(arguments + " --resume");
        damaged.assertPrints(2, "--resume-from 180 of tp");
        TpRun over = run(arguments + " --resume-from 180 --json @over.json");
        Assert.assertTrue(over.output().contains("Going on after step 180"), over.output());
        assertOver();
        over = run(arguments + " --resume --json @over.json");
        Assert.assertTrue(over.output().contains("Going on after step 200"), over.output());
        assertOver();
    }

    private void assertOver() throws IOException {
        Assert.assertEquals(
                TpRun.json(folder.resolve("over.json")).get("loss"),
                TpRun.json(folder.resolve("whole.json")).get("loss"));
    }

    private ForkedTp start(String arguments, int process, int port) throws IOException {
        return ForkedTp.start(JobVariables.of(process, 2, port), Arrays.asList(words(arguments)));
    }

    private void assertSame(String... figures) throws IOException {
        JsonObject whole = TpRun.json(folder.resolve("whole.json"));
        JsonObject resumed = TpRun.json(folder.resolve("resumed.json"));
        for (String figure : figures) {
            Assert.assertEquals(resumed.get(figure), whole.get(figure), figure);
        }
    }

    @Test(timeOut = 600_000, dependsOnMethods = "languageModelOfTwoProcesses")
    public void lemmatiser() throws Exception {
        TpRun whole = run(TRAIN + " --out @whole --json @whole.json");
        whole.assertPrints(0);
        List<String> arguments =
                new ArrayList<>(Arrays.asList(words(TRAIN + " --out @train --resume")));
        try (ForkedTp train = ForkedTp.start(Map.of(), arguments)) {
            while (!Files.exists(folder.resolve("train/checkpoints/step-00000007"))) {
                Assert.assertTrue(train.isAlive());
                Thread.sleep(5);
            }
            ForkedTp.Result result = train.stop();
            Assert.assertTrue(result.out().contains("There is no checkpoint in "), result.out());
            Assert.assertEquals(result.status(), 143, result.toString());
        }
        TpRun resumed = run(TRAIN + " --out @train --resume --json @resumed.json");
        resumed.assertPrints(0);
        assertSame("loss", "steps", "validation");
        Assert.assertEquals(
                Files.mismatch(
                        folder.resolve("whole/model.safetensors"),
                        folder.resolve("train/model.safetensors")),
                -1);
        assertRefused(
                TRAIN.replace("--steps 40", "--steps 39") + " --out @train --resume",
                "tp: --steps: the checkpoint in ",
                " has trained for 40 steps, which is beyond the 39 that are asked for");
        if (Precision.BFLOAT16.whyNot(Device.cpu()).isEmpty()) {
            TpRun other =
                    run(
                            TRAIN.replace("--steps 40", "--steps 41 --precision bfloat16")
                                    + " --out @train --resume");
            other.assertPrints(0, "Going on after step 40");
        }
    }

    private void assertRefused(String arguments, String... texts) {
        TpRun refused = run(arguments);
        refused.assertPrints(2);
        Refusals.assertContains(refused.output(), texts);
    }

    /** One line, before the first step. */
    @Test(timeOut = 600_000)
    public void aFolderThatCannotBeWrittenTo() throws IOException {
        Files.createFile(folder.resolve("file"));
        TpRun refused = run(LM + " --out @file --checkpoint-steps 5");
        refused.assertPrints(2, "tp: Checkpoints cannot be written to ");
        Assert.assertFalse(refused.output().contains("step    1"), refused.output());
    }
}
