package io.djltp.spark.ml;

import io.djltp.spark.OnSpark;
import io.djltp.spark.SparkJobException;
import io.djltp.testing.Refusals;

import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Stream;

/** A training whose executor is killed (SIGKILL) goes on from its last checkpoint. */
public class ElasticOnSparkTest extends OnSpark {

    private static final int EPOCHS = 3;

    private Dataset<Row> rows;
    private ParallelClassificationModel undisturbed;

    public ElasticOnSparkTest() {
        super(TWO_EXECUTORS);
    }

    @BeforeClass
    public void start() throws IOException {
        rows =
                spark.range(45)
                        .selectExpr(
                                "array(float(sin(id)), float(cos(id)), float(id / 45)) as features",
                                "int(id % 7) as label");
        undisturbed = classifier(Files.createTempDirectory("elastic"), 0, 0).fit(rows);
    }

    /** Of 9 steps of 3 epochs, the fifth is the first that can be killed. */
    private ParallelClassifier classifier(Path folder, int task, int kills) {
        return new ParallelClassifier()
                .setBody(KillingBody.class.getName())
                .setBodyArguments(
                        "mark=" + folder.resolve("mark"),
                        "after=" + folder.resolve("run/step-00000004"),
                        "task=" + task,
                        "kills=" + kills)
                .setRanks(2)
                .setBatchSize(16)
                .setEpochs(EPOCHS)
                .setLearningRate(0.05)
                .setCheckpointFolder(folder.resolve("run").toUri().toString())
                .setCheckpointInterval(2);
    }

    @DataProvider
    public static Object[][] tasks() {
        return new Object[][] {{0, 1, 2}, {1, 1, 3}};
    }

    /** The second attempt of several goes on by itself, to the weights of a resume by hand. */
    @Test(dataProvider = "tasks", timeOut = 240_000)
    public void aKilledTrainingGoesOnByItself(int task, int kills, int attempts)
            throws IOException {
        Path folder = Files.createTempDirectory("elastic");
        ParallelClassificationModel model =
                classifier(folder, task, kills).setMaxAttempts(attempts).fit(rows);
        Assert.assertTrue(Files.exists(folder.resolve("mark0")), "an executor was killed");
        Assert.assertEquals(model.network().parameters(), undisturbed.network().parameters());
        Assert.assertEquals(model.getTrainingLosses(), undisturbed.getTrainingLosses());
    }

    @Test(timeOut = 240_000)
    public void withoutMoreAttemptsItIsResumedByHand() throws IOException {
        Path folder = Files.createTempDirectory("elastic");
        ParallelClassifier classifier = classifier(folder, 1, 1);
        SparkJobException e =
                Assert.expectThrows(SparkJobException.class, () -> classifier.fit(rows));
        Assert.assertTrue(e.isExecutorLost(), e.toString());
        ParallelClassificationModel model = classifier.fit(rows);
        Assert.assertEquals(model.network().parameters(), undisturbed.network().parameters());
        Assert.assertEquals(model.getTrainingLosses(), undisturbed.getTrainingLosses());

        Refusals.expect(
                RuntimeException.class,
                () -> classifier.fit(rows.filter("label < 6")),
                "is of another training: ");
    }

    /**
     * The checkpoint is cut anew; rows are dealt to the ranks anew, so that the order is another.
     */
    @Test(timeOut = 240_000)
    public void byHandItGoesOnWithFewerRanks() throws IOException {
        Path folder = Files.createTempDirectory("elastic");
        ParallelClassifier classifier = classifier(folder, 1, 1);
        Assert.expectThrows(SparkJobException.class, () -> classifier.fit(rows));
        ParallelClassificationModel model = classifier.setRanks(1).fit(rows);
        double[] losses = model.getTrainingLosses();
        Assert.assertEquals(losses.length, EPOCHS);
        Assert.assertEquals(losses[0], undisturbed.getTrainingLosses()[0], "not trained again");
        Assert.assertTrue(losses[EPOCHS - 1] < losses[0], Arrays.toString(losses));
    }

    @Test(timeOut = 240_000)
    public void attemptsAreBounded() throws IOException {
        Path folder = Files.createTempDirectory("elastic");
        SparkJobException e =
                Assert.expectThrows(
                        SparkJobException.class,
                        () -> classifier(folder, 1, 2).setMaxAttempts(2).fit(rows));
        Assert.assertTrue(e.isExecutorLost(), e.toString());
        Assert.assertEquals(e.getSuppressed().length, 1, "the first attempt");
        Assert.assertTrue(Files.exists(folder.resolve("mark1")));
    }

    /** The folder of a longer training has no model of a shorter one. */
    @Test(timeOut = 240_000)
    public void fewerEpochsThanTrainedAreRefused() throws IOException {
        Path folder = Files.createTempDirectory("elastic");
        classifier(folder, 1, 0).fit(rows); // its newest checkpoint: after step 8 of 9
        SparkJobException e =
                Assert.expectThrows(
                        SparkJobException.class,
                        () -> classifier(folder, 1, 0).setEpochs(EPOCHS - 1).fit(rows));
        String message = e.getMessage();
        Assert.assertTrue(
                message.contains(
                        folder.resolve("run")
                                + " has trained for 2 epochs and 2 batches of the next, which is"
                                + " beyond the 2 that are asked for: ask for 3 epochs or more"),
                message);
        ParallelClassificationModel model = classifier(folder, 1, 0).fit(rows);
        Assert.assertEquals(model.network().parameters(), undisturbed.network().parameters());
        Assert.assertEquals(model.getTrainingLosses(), undisturbed.getTrainingLosses());
    }

    /** It runs last: executors were killed in the middle of their training. */
    @Test(timeOut = 60_000, priority = 1)
    public void killedExecutorsLeaveNoFolders() throws IOException {
        try (Stream<Path> files = Files.walk(Path.of("target", "spark"))) {
            Assert.assertEquals(
                    files.filter(each -> each.getFileName().toString().startsWith("tp-")).toList(),
                    List.of());
        }
    }

    @Test(timeOut = 60_000)
    public void whatATaskThrowsIsNotTriedAgain() throws IOException {
        Path folder = Files.createTempDirectory("elastic");
        Files.createFile(folder.resolve("run")); // no folder
        SparkJobException e =
                Assert.expectThrows(
                        SparkJobException.class,
                        () -> classifier(folder, 1, 0).setMaxAttempts(3).fit(rows));
        Assert.assertFalse(e.isExecutorLost(), e.toString());
        Assert.assertEquals(e.getSuppressed().length, 0);
    }
}
