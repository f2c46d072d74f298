package io.djltp.examples.train;

import io.djltp.examples.TpRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * Bad input of {@code tp train} ends in one clear line and status 2, before anything is written.
 */
public class TrainBadInputTest {

    @DataProvider
    public Object[][] inputs() {
        return new Object[][] {
            {"unknown language 'xx': choose from de, en, pl, uk, ru", "--languages", "de,xx"},
            {"--tp must be greater than 0, not 0", "--tp", "0"},
            {"--batch 3 is smaller than the 4 ranks", "--tp", "4", "--batch", "3"},
            {"--batch 3 is smaller", "--tp", "4", "--batch", "3", "--mode", "data"},
            {"--batch 3 is smaller than the 4 groups", "--mesh", "4x2", "--batch", "3"},
            {"--mesh 2x3 has 6 ranks, and --tp is 4", "--mesh", "2x3", "--tp", "4"},
            {"--mesh 2x2 and --mode tensor both say", "--mesh", "2x2", "--mode", "tensor"},
            {"--mesh: A mesh is written as the sizes of its axes", "--mesh", "2x"},
            {"--mesh: The axis 'tensor' of a mesh needs 1 rank", "--mesh", "2x0"},
            {"--dim must be greater than 0, not 0", "--dim", "0"},
            {"--batch must be greater than 0, not -5", "--batch", "-5"},
            {"--epochs must be greater than 0, not 0", "--epochs", "0"},
            {"--steps must be greater than 0, not 0", "--steps", "0"},
            {"--held-out must be 1 to 4000, not 0", "--held-out", "0"},
            {"--held-out must be 1 to 4000, not 4001", "--held-out", "4001"},
            {"--minutes must be greater than 0, not -0.5", "--minutes", "-0.5"},
            {"--lr must be greater than 0, not 0", "--lr", "0"},
            {"--lr must be greater than 0, not NaN", "--lr", "NaN"},
            {"--lr must be finite, not Infinity", "--lr", "Infinity"},
            {
                "--head sampled 1.00e-09: A sample share of 1.0E-9 of 120658 classes leaves no"
                        + " negatives: it is no class. The least share is 0.0000125",
                "--sample-share",
                "1e-9"
            },
            {"--json /proc/x cannot be written", "--json", "/proc/x"},
            {"--resume-from must be greater than 0, not -1", "--resume-from", "-1"},
            {"checkpoints has no checkpoint", "--resume-from", "7"},
            {"'--json': it is empty: name a file or a folder", "--json", ""},
            {"Invalid value for option '--mode'", "--mode", "both"},
            {"Invalid value for option '--optimizer'", "--optimizer", "adamax"},
            {"Invalid value for option '--head'", "--head", "half"},
            {
                "Invalid value for option '--backend': expected one of"
                        + " [auto, local, tcp, nccl] (case-insensitive) but was 'gloo'",
                "--backend",
                "gloo"
            },
            {"--sample-share must be greater than 0 and at most 1, not 0.0", "--sample-share", "0"},
            {"--sample-share is for --head sampled", "--sample-share", "0.5", "--head", "fused"},
            {"--precision: The precision must be one of float32", "--precision", "float8"},
            {"--precision: The precision tf32 ", "--precision", "tf32"},
            {"--precision: The precision float16 is arithmetic of GPUs", "--precision", "float16"},
            {"--json /dev/null/x cannot be written", "--json", "/dev/null/x"},
            {"This run needs about", "--batch", "1000000"},
            {"leaves ranks without a class", "--tp", "200000", "--mode", "tensor"},
        };
    }

    @Test(dataProvider = "inputs", timeOut = 60_000)
    public void testOneClearError(String message, String... options) throws IOException {
        Path out = Files.createTempDirectory("out");
        List<String> args = new ArrayList<>(List.of("train", "--out", out.toString()));
        args.addAll(List.of(options));
        try {
            TpRun run = TpRun.of(args.toArray(new String[0]));
            Assert.assertEquals(run.status(), 2, run.output());
            Assert.assertTrue(run.output().contains(message), run.output());
            Assert.assertFalse(run.output().contains("\tat "), run.output());
            Assert.assertFalse(run.output().contains("Usage:"), run.output());
            try (var files = Files.list(out)) {
                Assert.assertEquals(files.count(), 0, "something was left behind");
            }
        } finally {
            Files.delete(out);
        }
    }

    @DataProvider
    public Object[][] devices() {
        return new Object[][] {
            {"--device gpu takes one GPU for each rank", "--device", "gpu"},
        };
    }

    @Test(dataProvider = "devices", timeOut = 60_000)
    public void testDevicesAreCheckedBeforeAnythingIsRead(
            String message, String option, String value) throws IOException {
        Path out = Files.createTempDirectory("out");
        try {
            TpRun run = TpRun.of("train", "--out", out.toString(), option, value);
            Assert.assertEquals(run.status(), 2, run.output());
            Assert.assertTrue(run.output().contains("tp: " + message), run.output());
            Assert.assertFalse(run.output().contains("Reading"), run.output());
        } finally {
            Files.delete(out);
        }
    }

    @Test(timeOut = 60_000)
    public void testWrongOptionIsOneLineAndWhereToLook() {
        TpRun run = TpRun.of("train", "--hepl");
        Assert.assertEquals(run.status(), 2, run.output());
        Assert.assertTrue(run.output().startsWith("tp: Unknown option"), run.output());
        Assert.assertTrue(run.output().contains("--help"), run.output());
        Assert.assertTrue(run.output().trim().endsWith("./tp train --help"), run.output());
        Assert.assertTrue(run.output().lines().count() <= 4, run.output());
    }

    @Test(timeOut = 60_000)
    public void testFolderThatCannotBeWritten() throws IOException {
        Path file = Files.createTempFile("out", ".txt");
        try {
            // a file in the way stops even a user who may write everywhere
            TpRun run = TpRun.of("train", "--out", file.resolve("model").toString());
            Assert.assertEquals(run.status(), 2, run.output());
            Assert.assertTrue(run.output().contains("cannot be written"), run.output());
            Assert.assertTrue(run.output().contains("write permission"), run.output());
        } finally {
            Files.delete(file);
        }
    }
}
