package io.djltp.examples.train;

import ai.djl.Device;

import com.google.gson.JsonObject;

import io.djltp.examples.ForkedTp;
import io.djltp.examples.TpRun;
import io.djltp.internal.optimizer.HeadRates;
import io.djltp.testing.TestFolder;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** {@code tp train} learns, reports and saves; {@code tp predict} answers. */
public class TrainCommandTest {

    private final Path folder = TestFolder.create();

    @DataProvider
    public Object[][] modes() {
        return new Object[][] {{"mixed", "sampled", 0.05}, {"tensor", "full", 1}};
    }

    @Test(groups = "sweep", timeOut = 360_000)
    public void testTrainsInDataMode() throws IOException {
        testTrainsSavesAndAnswers("data", "fused", 1);
    }

    @Test(dataProvider = "modes", timeOut = 360_000)
    public void testTrainsSavesAndAnswers(String mode, String head, double share)
            throws IOException {
        Path out = folder.resolve(mode);
        // Adagrad takes more steps to come below where it began
        String line =
                "train --mode %s --head %s --optimizer sgd --batch 256 --tp 3 --steps 40 --dim 32"
                        + " --out %s --report %3$s.html --tensorboard %3$s-events";
        boolean narrow =
                head.equals("sampled") && Precision.BFLOAT16.whyNot(Device.cpu()).isEmpty();
        TpRun run =
                TpRun.withJson(
                        line.formatted(mode, head, out) + (narrow ? " --precision bfloat16" : ""));
        run.assertPrints(0, "120,658 classes", "4,000 rows with labels");
        Assert.assertTrue(Files.exists(out.resolve("model.safetensors")));
        String page = Files.readString(folder.resolve(mode + ".html"));
        Assert.assertTrue(page.contains("\"classes\":\"120,658\""));
        Assert.assertTrue(page.contains("\"name\":\"training\""));
        Assert.assertTrue(page.contains("\"running\":false,\"early\":false"));
        try (Stream<Path> events = Files.list(folder.resolve(mode + "-events"))) {
            Assert.assertTrue(Files.size(events.findFirst().orElseThrow()) > 40 * 2 * 40);
        }

        JsonObject json = run.figures().getAsJsonObject();
        Assert.assertEquals(json.get("classes").getAsInt(), 120_658);
        Assert.assertEquals(json.get("ranks").getAsInt(), 3);
        Assert.assertEquals(json.get("mode").getAsString(), mode);
        Assert.assertEquals(json.get("head").getAsString(), head);
        Assert.assertEquals(json.get("steps").getAsInt(), 40);
        double[] loss = run.losses();
        Assert.assertEquals(loss.length, 40);
        double first = loss[0];
        // of ten steps: each has other words, of other lemmas
        double last = Arrays.stream(loss, 30, 40).average().orElseThrow();
        // untrained, every lemma is as likely as any other
        Assert.assertEquals(first, Math.log(120_658 * share), 0.1);
        Assert.assertTrue(last < first - 0.3, "from " + first + " to " + last);
        JsonObject figures = json.getAsJsonObject("validation");
        Assert.assertTrue(figures.get("p1").getAsDouble() > 0.03, figures + "");
        Assert.assertTrue(json.get("samples_per_second").getAsDouble() > 0);
        Assert.assertTrue(json.get("seconds").getAsDouble() > 0);
        Assert.assertTrue(json.get("peak_rss_bytes").getAsLong() > 100_000_000);

        Assert.assertTrue(
                run.output().contains("Try: ./tp predict " + out + " TEXT..."), run.output());
        Assert.assertFalse(run.output().contains("tp: stopped"), run.output());

        TpRun lemma = TpRun.line("predict " + out + " ging Häusern");
        lemma.assertPrints(0);
        Assert.assertEquals(lemma.output().lines().count(), 2 * 6, lemma.output());
        Assert.assertTrue(
                Pattern.compile("(?m)^Häusern \\(\\d+\\.\\d ms\\)$").matcher(lemma.output()).find(),
                lemma.output());
    }

    /** As from a shell: there nothing has loaded libtorch before. */
    @Test(dependsOnMethods = "testTrainsSavesAndAnswers", timeOut = 240_000)
    public void testAnswersInAProcessOfItsOwn() throws IOException, InterruptedException {
        String model = folder.resolve("mixed").toString();
        try (ForkedTp lemma = ForkedTp.start(Map.of(), List.of("predict", model, "ging"))) {
            ForkedTp.Result result = lemma.await();
            Assert.assertEquals(result.status(), 0, result.toString());
            Assert.assertEquals(result.out().lines().count(), 6, result.toString());
        }
    }

    /** The rates of Adagrad stay for a while, and then fall in a line to a fifth. */
    @Test
    public void ratesFallTowardsTheEndOfTheRun() {
        double[][] expected = {{0, 1}, {0.3, 1}, {0.65, 0.6}, {1, 0.2}, {1.5, 0.2}};
        for (double[] each : expected) {
            Assert.assertEquals(HeadRates.factor(each[0]), each[1], 1e-6, "at " + each[0]);
        }
    }

    @Test(timeOut = 240_000)
    public void testStoppedRunSaysThatNothingIsSaved() throws IOException, InterruptedException {
        Path out = folder.resolve("stopped");
        List<String> arguments =
                List.of("train", "--steps", "1000000", "--dim", "8", "--out", out.toString());
        try (ForkedTp train = ForkedTp.start(Map.of(), arguments)) {
            ForkedTp.Result result = train.stopAfter("Training ");
            Assert.assertTrue(
                    Pattern.compile("tp: stopped after \\d+ steps, before anything was saved")
                            .matcher(result.err())
                            .find(),
                    result.toString());
            Assert.assertFalse(result.out().contains("The model is saved"), result.toString());
        }
        try (Stream<Path> left = Files.list(out)) {
            Assert.assertEquals(left.count(), 0);
        }
    }

    /** The files of the dictionary that a killed run leaves are deleted by the next one. */
    @Test(timeOut = 240_000)
    public void aKilledRunIsCleanedUpAfter() throws IOException, InterruptedException {
        Path out = folder.resolve("killed");
        String line = "train --steps %d --dim 8 --tp 1 --out " + out;
        List<String> arguments = List.of(line.formatted(1_000_000).split(" "));
        try (ForkedTp train = ForkedTp.start(Map.of(), arguments)) {
            train.awaitOutput(printed -> printed.contains("Training "));
            train.kill();
        }
        Assert.assertTrue(Files.exists(out.resolve(".words-0/train.txt")));
        TpRun.line(line.formatted(1)).assertPrints(0, "The model is saved");
        Assert.assertFalse(Files.exists(out.resolve(".words-0")));
    }

    /** A terminal that is closed is no request for a checkpoint; those that are there stay. */
    @Test(timeOut = 240_000)
    public void testAHangUpNamesTheNewestCheckpoint() throws Exception {
        Matcher ignored =
                Pattern.compile("SigIgn:\\s+(\\p{XDigit}+)")
                        .matcher(Files.readString(Path.of("/proc/self/status")));
        if (!ignored.find() || (Long.parseUnsignedLong(ignored.group(1), 16) & 1) != 0) {
            throw new SkipException("SIGHUP is ignored here, as below nohup");
        }
        String out = folder.resolve("hung-up").toString();
        String line = "train --steps 1000000 --dim 8 --checkpoint-steps 5 --out " + out;
        Path saved = folder.resolve("hung-up/checkpoints/step-00000005/index.json");
        try (ForkedTp train = ForkedTp.start(Map.of(), List.of(line.split(" ")))) {
            while (train.isAlive() && !Files.exists(saved)) {
                Thread.sleep(20);
            }
            ForkedTp.Result result = train.signal("HUP");
            Assert.assertTrue(
                    Pattern.compile(
                                    "tp: stopped after \\d+ steps, before the model was saved. "
                                            + Pattern.quote(out)
                                            + "/checkpoints has the checkpoint of step \\d+:"
                                            + " --resume goes on from it")
                            .matcher(result.err())
                            .find(),
                    result.toString());
        }
    }
}
