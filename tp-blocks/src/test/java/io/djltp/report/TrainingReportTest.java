package io.djltp.report;

import ai.djl.Model;
import ai.djl.TrainingDivergedException;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.listener.EarlyStoppingListener;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.listener.TrainingListenerAdapter;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.rank.LossScaling;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;

/** The page of a training has its figures: what was lost, held, cut, and where the time went. */
public class TrainingReportTest {

    private static final int ROWS = 24;
    private static final int BATCH = 6;
    private static final int CLASSES = 7;
    private static final int SLEEP = 40;

    private Path folder;
    private final List<Double> losses = new ArrayList<>();
    private final List<TrainingListener> before = new ArrayList<>(); // the report
    private Tracker rate;
    private boolean validates;

    @BeforeMethod
    public void create() throws Exception {
        folder = Files.createTempDirectory("report");
        losses.clear();
        before.clear();
        rate = Tracker.fixed(0.1f);
        validates = true;
    }

    @AfterMethod(alwaysRun = true)
    public void delete() throws Exception {
        if (Files.exists(folder)) {
            try (Stream<Path> files = Files.list(folder)) {
                for (Path file : files.toList()) {
                    Files.delete(file);
                }
            }
            Files.delete(folder);
        }
    }

    @Test(timeOut = 60_000)
    public void thePageHasTheFiguresOfTheTraining() throws Exception {
        Path file = folder.resolve("run.html");
        TrainingReport report =
                TrainingReport.builder()
                        .setFile(file)
                        .optTitle("A <b>run</b> </script>")
                        .optFact("optimizer", "momentum")
                        .optInterval(Duration.ofSeconds(2))
                        .build();
        train(report, 2, 0);
        String page = Files.readString(file);
        Assert.assertFalse(page.contains("http-equiv"), "a page of the past is not read again");
        Assert.assertFalse(page.contains("</script>\",")); // the title ends no script
        JsonObject data = data(page);
        Assert.assertEquals(data.get("title").getAsString(), "A <b>run</b> </script>");
        Assert.assertFalse(data.get("running").getAsBoolean());
        Assert.assertEquals(data.get("interval").getAsDouble(), 2.0); // seconds
        Assert.assertEquals(data.get("steps").getAsInt(), 2 * ROWS / BATCH);

        JsonArray loss = curve(data, "loss", "training");
        Assert.assertEquals(loss.size(), losses.size());
        for (int i = 0; i < losses.size(); i++) {
            Assert.assertEquals(loss.get(i).getAsDouble(), losses.get(i), 1e-6);
        }
        Assert.assertEquals(curve(data, "evaluation", "train Accuracy").size(), 2); // of epochs
        Assert.assertEquals(curve(data, "evaluation", "validate Accuracy").size(), 2);
        Assert.assertEquals(curve(data, "loss", "validation").size(), 2);
        for (JsonElement each : data.get("curves").getAsJsonArray()) { // losses have their own
            JsonObject curve = each.getAsJsonObject();
            boolean accuracy = curve.get("name").getAsString().endsWith("Accuracy");
            Assert.assertEquals(curve.get("chart").getAsString().equals("evaluation"), accuracy);
        }
        Assert.assertTrue(curve(data, "throughput", "rows").size() >= losses.size() - 1);

        // weights: 5 x 4 and 5 whole; 7 x 5 and 7 cut into 4 and 3 classes. Momentum is as large
        JsonArray ranks = data.get("ranks").getAsJsonArray();
        for (int rank = 0; rank < 2; rank++) {
            JsonObject held = ranks.get(rank).getAsJsonObject();
            long bytes = 4 * (25 + (rank == 0 ? 4 : 3) * 6);
            Assert.assertEquals(held.get("weights").getAsLong(), bytes, held.toString());
        }
        JsonObject cut = data.get("parameters").getAsJsonArray().get(2).getAsJsonObject();
        Assert.assertEquals(cut.get("axis").getAsInt(), 0, cut.toString());
        Assert.assertEquals(cut.get("ranges").toString(), "[[[0,4]],[[4,7]]]");
    }

    @Test(
            expectedExceptions = IllegalArgumentException.class,
            expectedExceptionsMessageRegExp = ".* must be a second or more, not PT0.5S")
    public void anIntervalBelowASecondIsRefused() {
        TrainingReport.builder().optInterval(Duration.ofMillis(500));
    }

    /** Where the loss is scaled, the scale and the steps that were left out are curves. */
    @Test(timeOut = 60_000)
    public void theScaleOfTheLossIsSeen() throws Exception {
        Path file = folder.resolve("run.html");
        LossScaling scaling = LossScaling.builder().optInitialScale(8).optGrowthInterval(2).build();
        train(TrainingReport.builder().setFile(file).build(), 1, 0, scaling);
        JsonObject data = data(Files.readString(file));
        List<Integer> scales = new ArrayList<>();
        curve(data, "loss scale", "loss scale").forEach(each -> scales.add(each.getAsInt()));
        Assert.assertEquals(scales, List.of(8, 8, 16, 16));
        for (JsonElement left : curve(data, "steps left out", "steps left out")) {
            Assert.assertEquals(left.getAsInt(), 0);
        }
    }

    /** Without a validation set there is no curve of validation, and nothing to warn of. */
    @Test(timeOut = 60_000)
    public void withoutAValidationSetThereIsNoValidationCurve() throws Exception {
        Path file = folder.resolve("run.html");
        validates = false;
        train(TrainingReport.builder().setFile(file).build(), 2, 0);
        JsonObject data = data(Files.readString(file));
        for (JsonElement each : data.get("curves").getAsJsonArray()) {
            String name = each.getAsJsonObject().get("name").getAsString();
            Assert.assertFalse(name.startsWith("validat"), name);
        }
        Assert.assertEquals(curve(data, "evaluation", "train Accuracy").size(), 2);
        Assert.assertFalse(data.get("early").getAsBoolean());
    }

    /** Within an epoch, and its first batch. */
    @DataProvider
    public Object[] lastSteps() {
        return new Object[] {ROWS / BATCH + 2, 2 * ROWS / BATCH};
    }

    /** DJL's listener, which comes first, ends the training: the page shows a NaN, and where. */
    @Test(timeOut = 60_000, dataProvider = "lastSteps")
    public void aTrainingThatDivergedHasNotSimplyEnded(int last) throws Exception {
        Path file = folder.resolve("run.html");
        rate = update -> update >= last ? 3e38f : 0.1f;
        TrainingReport report = TrainingReport.builder().setFile(file).build();
        Assert.expectThrows(TrainingDivergedException.class, () -> train(report, 9, 0));
        JsonObject data = data(Files.readString(file));
        JsonArray loss = curve(data, "loss", "training");
        Assert.assertEquals(losses.size(), last);
        Assert.assertEquals(loss.size(), losses.size() + 1, loss + " of " + losses);
        Assert.assertTrue(loss.get(losses.size()).isJsonNull(), loss.toString());
        Assert.assertEquals(data.get("steps").getAsInt(), losses.size());
        Assert.assertFalse(data.get("running").getAsBoolean());
        Assert.assertTrue(data.get("early").getAsBoolean());
    }

    /** A loop that was stopped says so itself, where DJL's listeners cannot. */
    @Test(timeOut = 60_000)
    public void aLoopCanSayThatItEndsEarly() throws Exception {
        Path file = folder.resolve("run.html");
        TrainingReport report = TrainingReport.builder().setFile(file).build();
        report.endEarly();
        train(report, 1, 0);
        Assert.assertTrue(data(Files.readString(file)).get("early").getAsBoolean());
    }

    /** A listener before the report ends the training with an epoch: it is on the page. */
    @Test(timeOut = 60_000)
    public void anEpochThatAnotherListenerEndsIsWhole() throws Exception {
        Path file = folder.resolve("run.html");
        before.add(EarlyStoppingListener.builder().optMinEpochs(2).optMaxMillis(0).build());
        TrainingReport report = TrainingReport.builder().setFile(file).build();
        Assert.expectThrows(
                EarlyStoppingListener.EarlyStoppedException.class, () -> train(report, 9, 0));
        JsonObject data = data(Files.readString(file));
        Assert.assertEquals(data.get("steps").getAsInt(), 2 * ROWS / BATCH);
        Assert.assertEquals(curve(data, "loss", "validation").size(), 2);
        Assert.assertFalse(data.get("early").getAsBoolean());
    }

    /** A rank that is late makes the other wait, and the parts are the whole. */
    @Test(timeOut = 60_000)
    public void waitingForALateRankIsSeen() throws Exception {
        Path file = folder.resolve("run.html");
        train(TrainingReport.builder().setFile(file).build(), 1, SLEEP);
        JsonObject data = data(Files.readString(file));
        JsonObject first = times(data, 0);
        JsonObject late = times(data, 1);
        Assert.assertTrue(
                first.get("waiting for ranks").getAsDouble() > 0.8 * SLEEP, data.get("ranks") + "");
        Assert.assertTrue(late.get("forward").getAsDouble() > 0.8 * SLEEP, data.get("ranks") + "");
        Assert.assertTrue(
                late.get("waiting for ranks").getAsDouble()
                        < first.get("waiting for ranks").getAsDouble(),
                data.get("ranks") + "");
        double sum = 0;
        for (String part : first.keySet()) {
            Assert.assertTrue(first.get(part).getAsDouble() >= -0.5, part + " of " + first);
            sum += first.get(part).getAsDouble();
        }
        JsonArray steps = curve(data, "time", "step");
        double wall = 0;
        for (int i = 0; i < steps.size(); i++) {
            wall += steps.get(i).getAsDouble() / steps.size();
        }
        Assert.assertEquals(sum, wall, 0.02 * wall);
    }

    /** The folder goes away while the training runs. */
    @Test(timeOut = 60_000)
    public void aPageThatCannotBeWrittenEndsNoTraining() throws Exception {
        Path file = folder.resolve("run.html");
        TrainingReport report = TrainingReport.builder().setFile(file).build();
        Files.delete(folder);
        train(report, 1, 0);
        Assert.assertEquals(losses.size(), ROWS / BATCH);
        Assert.assertFalse(Files.exists(file));
    }

    @Test(
            expectedExceptions = IllegalArgumentException.class,
            expectedExceptionsMessageRegExp = ".*must be a folder that is there.*")
    public void aFolderThatIsNotThereIsAnError() {
        TrainingReport.builder().setFile(folder.resolve("none/run.html")).build();
    }

    private static JsonObject times(JsonObject data, int rank) {
        return data.get("ranks")
                .getAsJsonArray()
                .get(rank)
                .getAsJsonObject()
                .get("times")
                .getAsJsonObject();
    }

    private static JsonObject data(String page) {
        String start = "<script type=\"application/json\" id=\"data\">";
        int begin = page.indexOf(start) + start.length();
        return JsonParser.parseString(page.substring(begin, page.indexOf("</script>", begin)))
                .getAsJsonObject();
    }

    private static JsonArray curve(JsonObject data, String chart, String name) {
        for (var curve : data.get("curves").getAsJsonArray()) {
            JsonObject json = curve.getAsJsonObject();
            if (json.get("chart").getAsString().equals(chart)
                    && json.get("name").getAsString().equals(name)) {
                return json.get("y").getAsJsonArray();
            }
        }
        throw new AssertionError("no curve " + name + " in " + data.get("curves"));
    }

    private void train(TrainingReport report, int epochs, int sleep) throws Exception {
        train(report, epochs, sleep, null);
    }

    private void train(TrainingReport report, int epochs, int sleep, LossScaling scaling)
            throws Exception {
        SequentialBlock network =
                new SequentialBlock()
                        .add(Linear.builder().setUnits(5).build())
                        .add(new LateRank(sleep))
                        .add(ColumnParallelLinear.builder().setUnits(CLASSES).build());
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                        .addEvaluator(new VocabParallelAccuracy())
                        .optOptimizer(
                                Optimizer.sgd()
                                        .setLearningRateTracker(rate)
                                        .optMomentum(0.9f)
                                        .build())
                        .addTrainingListeners(TrainingListener.Defaults.basic())
                        .addTrainingListeners(new Losses())
                        .addTrainingListeners(before.toArray(new TrainingListener[0]))
                        .addTrainingListeners(report);
        ParallelConfig ranks =
                ParallelConfig.builder()
                        .setMode(ParallelMode.TENSOR)
                        .setRanks(2)
                        .optLossScaling(scaling)
                        .build();
        try (NDManager manager = NDManager.newBaseManager();
                Model model = Model.newInstance("report")) {
            model.setBlock(network);
            ArrayDataset data =
                    new ArrayDataset.Builder()
                            .setData(manager.randomNormal(new Shape(ROWS, 4)))
                            .optLabels(manager.arange(ROWS).mod(CLASSES))
                            .setSampling(BATCH, false)
                            .build();
            try (Trainer trainer = new ParallelTrainer(model, config, ranks)) {
                trainer.initialize(new Shape(BATCH, 4));
                EasyTrain.fit(trainer, epochs, data, validates ? data : null);
            }
        }
    }

    /** What the page is held against. */
    private final class Losses extends TrainingListenerAdapter {

        @Override
        public void onTrainingBatch(Trainer trainer, BatchData batch) {
            var device = batch.getLabels().keySet().iterator().next();
            losses.add(
                    (double)
                            trainer.getLoss()
                                    .evaluate(
                                            batch.getLabels().get(device),
                                            batch.getPredictions().get(device))
                                    .getFloat());
        }
    }
}
