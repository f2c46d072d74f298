package io.djltp.report;

import ai.djl.Model;
import ai.djl.TrainingDivergedException;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.listener.EarlyStoppingListener;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.listener.TrainingListenerAdapter;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.util.PairList;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import io.djltp.checkpoint.CheckpointListener;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.report.SystemMemory;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.rank.LossScaling;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.report.TrainingReport.Curve;
import io.djltp.testing.Blocks;
import io.djltp.testing.TestFolder;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;

/** The page of a training has its figures: what was lost, held, cut, and where the time went. */
public class TrainingReportTest extends TestFolder {
    private static final int ROWS = 24;
    private static final int BATCH = 6;
    private static final int CLASSES = 7;
    private static final int SLEEP = 40;

    private final List<Double> losses = new ArrayList<>();
    private Path page;
    private TrainingReport report;
    // what a test changes of the training
    private Tracker rate;
    private TrainingListener before; // the report, or null
    private boolean validates;
    private int sleep;
    private LossScaling scaling;
    private CheckpointListener checkpoints;

    @BeforeMethod
    public void makeReport() throws Exception {
        page = folder.resolve("run.html");
        report = TrainingReport.builder().optPage(page).build();
        losses.clear();
        rate = Tracker.fixed(0.1f);
        before = null;
        validates = true;
        sleep = 0;
        scaling = null;
        checkpoints = null;
    }

    @Test(timeOut = 60_000)
    public void thePageHasTheFiguresOfTheTraining() throws Exception {
        report =
                TrainingReport.builder()
                        .optPage(page)
                        .optTensorBoard(folder.resolve("events"))
                        .optTitle("A <b>run</b> </script>")
                        .optFact("optimizer", "momentum")
                        .build();
        JsonObject data = train(2);
        String text = Files.readString(page);
        Assert.assertFalse(text.contains("http-equiv"), "a page of the past is not read again");
        Assert.assertFalse(text.contains("</script>\",")); // the title ends no script
        Assert.assertEquals(data.get("title").getAsString(), "A <b>run</b> </script>");
        Assert.assertEquals(data.get("facts").toString(), "{\"optimizer\":\"momentum\"}");
        Assert.assertFalse(data.get("running").getAsBoolean());
        Assert.assertEquals(data.get("interval").getAsDouble(), 5.0); // seconds
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
        for (int rank = 0; rank < 2; rank++) {
            JsonObject held = rank(data, rank);
            long bytes = 4 * (25 + (rank == 0 ? 4 : 3) * 6);
            Assert.assertEquals(held.get("weights").getAsLong(), bytes, held.toString());
        }
        JsonObject cut = data.get("parameters").getAsJsonArray().get(2).getAsJsonObject();
        Assert.assertEquals(cut.get("axis").getAsInt(), 0, cut.toString());
        Assert.assertEquals(cut.get("ranges").toString(), "[[[0,4]],[[4,7]]]");
        try (Stream<Path> events = Files.list(folder.resolve("events"))) { // of 8 losses and more
            Assert.assertTrue(Files.size(events.findFirst().orElseThrow()) > 8 * 50);
        }
    }

    /** Where the loss is scaled, the scale and the steps that were left out are curves. */
    @Test(timeOut = 60_000)
    public void theScaleOfTheLossIsSeen() throws Exception {
        scaling = LossScaling.builder().optInitialScale(8).optGrowthInterval(2).build();
        JsonObject data = train(1);
        Assert.assertEquals(
                curve(data, "loss scale", "loss scale").toString(), "[8.0,8.0,16.0,16.0]");
        Assert.assertEquals(
                curve(data, "steps left out", "steps left out").toString(), "[0.0,0.0,0.0,0.0]");
    }

    /** Without a validation set there is no curve of validation, and nothing to warn of. */
    @Test(timeOut = 60_000)
    public void withoutAValidationSetThereIsNoValidationCurve() throws Exception {
        validates = false;
        JsonObject data = train(2);
        Assert.assertFalse(data.get("curves").toString().contains("\"validat"));
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
        rate = update -> update >= last ? 3e38f : 0.1f;
        Assert.expectThrows(TrainingDivergedException.class, () -> train(9));
        JsonObject data = data();
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
        report.endEarly();
        Assert.assertTrue(train(1).get("early").getAsBoolean());
    }

    /** A listener before the report ends the training with an epoch: it is on the page. */
    @Test(timeOut = 60_000)
    public void anEpochThatAnotherListenerEndsIsWhole() throws Exception {
        before = EarlyStoppingListener.builder().optMinEpochs(2).optMaxMillis(0).build();
        Assert.expectThrows(EarlyStoppingListener.EarlyStoppedException.class, () -> train(9));
        JsonObject data = data();
        Assert.assertEquals(data.get("steps").getAsInt(), 2 * ROWS / BATCH);
        Assert.assertEquals(curve(data, "loss", "validation").size(), 2);
        Assert.assertFalse(data.get("early").getAsBoolean());
    }

    /** A rank that is late makes the other wait, and the parts are the whole. */
    @Test(timeOut = 60_000)
    public void waitingForALateRankIsSeen() throws Exception {
        sleep = SLEEP;
        JsonObject data = train(1);
        JsonObject first = rank(data, 0).get("times").getAsJsonObject();
        JsonObject late = rank(data, 1).get("times").getAsJsonObject();
        String ranks = data.get("ranks").toString();
        double waited = first.get("waiting for ranks").getAsDouble();
        Assert.assertTrue(waited > 0.8 * SLEEP, ranks);
        Assert.assertTrue(late.get("forward").getAsDouble() > 0.8 * SLEEP, ranks);
        Assert.assertTrue(late.get("waiting for ranks").getAsDouble() < waited, ranks);
        double sum = 0;
        for (String part : first.keySet()) {
            Assert.assertTrue(first.get(part).getAsDouble() >= -0.5, part + " of " + first);
            sum += first.get(part).getAsDouble();
        }
        double wall =
                curve(data, "time", "step").asList().stream()
                        .mapToDouble(JsonElement::getAsDouble)
                        .average()
                        .orElseThrow();
        Assert.assertEquals(sum, wall, 0.02 * wall);
    }

    /** The folder goes away while the training runs. */
    @Test(timeOut = 60_000)
    public void aPageThatCannotBeWrittenEndsNoTraining() throws Exception {
        Files.delete(folder);
        Assert.assertNull(train(1));
        Assert.assertEquals(losses.size(), ROWS / BATCH);
    }

    @Test(
            expectedExceptions = IllegalArgumentException.class,
            expectedExceptionsMessageRegExp = ".*must be a folder that is there.*")
    public void aFolderThatIsNotThereIsAnError() {
        TrainingReport.builder().optPage(folder.resolve("none/run.html")).build();
    }

    /** The figures of a training that was resumed are those of the steps after the checkpoint's. */
    @Test(timeOut = 60_000)
    public void stepsGoOn() throws Exception {
        validates = false;
        for (String steps : List.of("[1,2,3,4]", "[5,6,7,8,9,10,11,12]")) {
            report = TrainingReport.builder().optPage(page).build();
            checkpoints =
                    CheckpointListener.builder()
                            .setFolder(folder.resolve("checkpoints"))
                            .optEverySteps(ROWS / BATCH)
                            .build();
            JsonObject loss = curve(train(steps.startsWith("[1") ? 1 : 3), "loss/training");
            Assert.assertEquals(loss.get("x").toString(), steps);
        }
    }

    @Test
    public void fewValuesAreThePoints() {
        Curve curve = new Curve("loss", "training", "");
        curve.add(1, 4);
        curve.add(2, Double.NaN); // a loss that has left the numbers
        curve.add(3, 2);
        JsonObject json = curve.toJson();
        Assert.assertEquals(json.get("x").toString(), "[1,2,3]");
        Assert.assertEquals(json.get("y").toString(), "[4.0,null,2.0]");
        Assert.assertEquals(json.get("mean").getAsInt(), 1);
    }

    /**
     * However many values a curve gets, it has at most so many points, whose mean is that of all.
     */
    @Test
    public void manyValuesBecomeMeansOfNeighbours() {
        Curve curve = new Curve("loss", "training", "");
        int steps = 10_000;
        for (int step = 1; step <= steps; step++) {
            curve.add(step, step);
        }
        JsonObject json = curve.toJson();
        JsonArray x = json.get("x").getAsJsonArray();
        int mean = json.get("mean").getAsInt();
        Assert.assertEquals(mean, 16, "10,000 values in less than 1,024 points");
        Assert.assertEquals(x.size(), steps / mean);
        for (int i = 0; i < x.size(); i++) {
            long last = (i + 1L) * mean;
            double y = json.get("y").getAsJsonArray().get(i).getAsDouble();
            Assert.assertEquals(x.get(i).getAsLong(), last);
            Assert.assertEquals(y, last - (mean - 1) / 2.0, 1e-3);
        }
    }

    /** A container has a limit of its own, below what the machine has. */
    @Test
    public void theLimitOfAContainerCounts() {
        Assert.assertEquals(SystemMemory.within(1000, 300, 5000), 700);
        Assert.assertEquals(SystemMemory.within(9000, 300, 5000), 5000);
        Assert.assertEquals(SystemMemory.within(1000, 1300, 5000), 0);
    }

    private static JsonObject rank(JsonObject data, int rank) {
        return data.get("ranks").getAsJsonArray().get(rank).getAsJsonObject();
    }

    private static JsonArray curve(JsonObject data, String chart, String name) {
        return curve(data, chart + "/" + name).get("y").getAsJsonArray();
    }

    private static JsonObject curve(JsonObject data, String name) {
        for (JsonElement each : data.get("curves").getAsJsonArray()) {
            JsonObject curve = each.getAsJsonObject();
            String chart = curve.get("chart").getAsString();
            if ((chart + "/" + curve.get("name").getAsString()).equals(name)) {
                return curve;
            }
        }
        throw new AssertionError("no curve " + name + " in " + data.get("curves"));
    }

    /** Returns the data of the page, or null if there is none. */
    private JsonObject data() throws Exception {
        if (!Files.exists(page)) {
            return null;
        }
        String text = Files.readString(page);
        String start = "<script type=\"application/json\" id=\"data\">";
        int begin = text.indexOf(start) + start.length();
        String data = text.substring(begin, text.indexOf("</script>", begin));
        return JsonParser.parseString(data).getAsJsonObject();
    }

    /** Trains with the report, and returns the data of the page. */
    private JsonObject train(int epochs) throws Exception {
        SequentialBlock network =
                new SequentialBlock()
                        .add(Linear.builder().setUnits(5).build())
                        .add(new LateRank())
                        .add(ColumnParallelLinear.builder().setUnits(CLASSES).build());
        Optimizer optimizer =
                Optimizer.sgd().setLearningRateTracker(rate).optMomentum(0.9f).build();
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                        .addEvaluator(new VocabParallelAccuracy())
                        .optOptimizer(optimizer)
                        .addTrainingListeners(TrainingListener.Defaults.basic())
                        .addTrainingListeners(new Losses());
        for (TrainingListener each : new TrainingListener[] {before, report, checkpoints}) {
            if (each != null) {
                config.addTrainingListeners(each);
            }
        }
        ParallelConfig.Builder builder =
                ParallelConfig.builder().setMode(ParallelMode.TENSOR).setRanks(2);
        if (scaling != null) {
            builder.optLossScaling(scaling);
        }
        ParallelConfig ranks = builder.build();
        try (NDManager manager = NDManager.newBaseManager();
                Model model = Blocks.model(network)) {
            ArrayDataset data =
                    new ArrayDataset.Builder()
                            .setData(manager.randomNormal(new Shape(ROWS, 4)))
                            .optLabels(manager.arange(ROWS).mod(CLASSES))
                            .setSampling(BATCH, false)
                            .build();
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks)) {
                trainer.initialize(new Shape(BATCH, 4));
                if (checkpoints == null) {
                    EasyTrain.fit(trainer, epochs, data, validates ? data : null);
                } else {
                    checkpoints.resume(trainer);
                    checkpoints.fit(trainer, epochs, data, null);
                }
            }
        }
        return data();
    }

    /** Hands its input on; rank 1 takes its time. */
    private final class LateRank extends AbstractBlock {
        @Override
        protected NDList forwardInternal(
                ParameterStore store, NDList inputs, boolean training, PairList<String, Object> p) {
            ParallelContext context = RankParameterStore.contextOf(store);
            if (context != null && context.getRank() == 1) {
                long end = System.nanoTime() + sleep * 1_000_000L;
                while (System.nanoTime() < end) {
                    LockSupport.parkNanos(end - System.nanoTime());
                }
            }
            return inputs;
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return inputShapes;
        }
    }

    /** What the page is held against. */
    private final class Losses extends TrainingListenerAdapter {
        @Override
        public void onTrainingBatch(Trainer trainer, BatchData batch) {
            var device = batch.getLabels().keySet().iterator().next();
            NDList labels = batch.getLabels().get(device);
            NDList predictions = batch.getPredictions().get(device);
            losses.add((double) trainer.getLoss().evaluate(labels, predictions).getFloat());
        }
    }
}
