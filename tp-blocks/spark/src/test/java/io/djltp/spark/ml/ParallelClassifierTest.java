package io.djltp.spark.ml;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.ParameterStore;

import io.djltp.spark.OnSpark;
import io.djltp.spark.SparkJobException;
import io.djltp.torch.Precision;

import org.apache.spark.SparkConf;
import org.apache.spark.ml.Pipeline;
import org.apache.spark.ml.PipelineModel;
import org.apache.spark.ml.PipelineStage;
import org.apache.spark.ml.feature.StringIndexer;
import org.apache.spark.ml.param.Param;
import org.apache.spark.ml.param.ParamMap;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.functions;
import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.UnaryOperator;

/** The classifier by Spark ML's conventions, and what it refuses. */
public class ParallelClassifierTest extends OnSpark {

    private static final int ROWS = 43;

    private Dataset<Row> rows;

    public ParallelClassifierTest() {
        super(LOCAL, "spark.executor.memoryOverhead", "384m");
    }

    @BeforeClass
    public void makeRows() {
        rows = directions(ROWS).drop("x", "y").repartition(2);
    }

    private static ParallelClassifier classifier() {
        return new ParallelClassifier()
                .setRanks(2)
                .setHiddenLayers(8)
                .setBatchSize(16)
                .setEpochs(30)
                .setLearningRate(0.05);
    }

    @Test(timeOut = 120_000)
    public void learnsInAPipelineAndIsSavedAndLoaded() throws Exception {
        Path folder = Files.createTempDirectory("saved");
        PipelineModel trained =
                new Pipeline()
                        .setStages(
                                new PipelineStage[] {
                                    new StringIndexer()
                                            .setInputCol("direction")
                                            .setOutputCol("label"),
                                    classifier()
                                })
                        .fit(rows);
        List<Row> predicted = trained.transform(rows).collectAsList();
        for (Row row : predicted) {
            List<Row> top = row.getList(row.fieldIndex("topClasses"));
            Assert.assertEquals(top.size(), 4, "no more than there are classes");
            Assert.assertEquals(top.get(0).<String>getAs("name"), row.<String>getAs("direction"));
            Assert.assertEquals(
                    row.<Double>getAs("prediction"), (double) top.get(0).<Long>getAs("label"));
        }
        trained.write().overwrite().save(folder.toString());
        PipelineModel loaded = PipelineModel.load(folder.toString());
        Assert.assertEquals(loaded.transform(rows).collectAsList(), predicted);
        ParallelClassificationModel model = (ParallelClassificationModel) loaded.stages()[1];
        Assert.assertEquals(model.getTrainingLosses().length, 30);
        Assert.assertEquals(model.getClassNames().length, 4);
        checkPlainDjl(model, predicted);
    }

    @Test
    public void theEstimatorIsSavedAndLoadedWithAllItsParameters() throws IOException {
        String folder = Files.createTempDirectory("estimator").toString();
        ParallelClassifier classifier =
                classifier()
                        .setClassNames("a", "b")
                        .setHeadMargin(64, 1, 0.5, 0)
                        .setHeadBias(false)
                        .setHeadSampleShare(0.5)
                        .setHeadPrecision("bfloat16")
                        .setLabelSmoothing(0.1)
                        .setOptimizer("sgd")
                        .setTopK(7);
        classifier.write().overwrite().save(folder);
        ParallelClassifier loaded = ParallelClassifier.load(folder);
        Assert.assertEquals(loaded.uid(), classifier.uid());
        Assert.assertEquals(values(loaded), values(classifier));
        Assert.assertEquals(values(loaded.copy(ParamMap.empty())), values(classifier));
    }

    private static Map<String, String> values(ParallelClassifier classifier) {
        Map<String, String> values = new TreeMap<>();
        for (Param<?> each : classifier.params()) {
            Object value = classifier.getOrDefault(each);
            values.put(each.name(), Arrays.deepToString(new Object[] {value}));
        }
        Assert.assertEquals(values.size(), 29);
        Assert.assertEquals(values.get("headMargin"), "[[64.0, 1.0, 0.5, 0.0]]");
        return values;
    }

    @Test(timeOut = 60_000)
    public void arraysOfNumbersAreFeaturesAndTheHeadHasItsOptions() {
        Dataset<Row> arrays =
                rows.select(
                        functions
                                .array(functions.lit(1.0f), functions.col("number").cast("float"))
                                .as("features"),
                        functions.col("number").mod(4).as("label"));
        ParallelClassificationModel model =
                classifier()
                        .setEpochs(1)
                        .setOptimizer("sgd")
                        .setHeadBias(false)
                        .setHeadMargin(16, 1, 0.2, 0)
                        .setHeadSampleShare(0.75)
                        .setHeadMemory(1 << 20)
                        .fit(arrays);
        Assert.assertEquals(model.getNumClasses(), 4);
        Row first = model.transform(arrays).first();
        Assert.assertEquals(
                first.<Row>getList(first.fieldIndex("topClasses")).get(0).getString(1),
                Long.toString((long) first.<Double>getAs("prediction").doubleValue()),
                "without names, the numbers");
    }

    /** With e smoothed of 4 classes no loss is below the entropy of labels that have e/4 each. */
    @Test(timeOut = 120_000)
    public void smoothedLabelsReachTheRanks() {
        double own = 0.5 + 0.5 / 4;
        double entropy = -own * Math.log(own) - 3 * 0.125 * Math.log(0.125); // 1.07
        Assert.assertTrue(lastLoss(classifier().setLabelSmoothing(0.5)) >= entropy - 1e-5);
        Assert.assertTrue(lastLoss(classifier()) < 1);
    }

    @Test(timeOut = 120_000)
    public void theArithmeticOfTheHeadReachesTheRanks() {
        if (Precision.BFLOAT16.whyNot(Device.cpu()).isPresent()) {
            throw new SkipException("This machine has no bfloat16");
        }
        double wide = lastLoss(classifier());
        double rounded = lastLoss(classifier().setHeadPrecision("bfloat16"));
        Assert.assertNotEquals(rounded, wide);
        Assert.assertEquals(rounded, wide, 0.02);
    }

    private double lastLoss(ParallelClassifier classifier) {
        double[] losses =
                classifier
                        .fit(rows.withColumn("label", functions.col("number").mod(4)))
                        .getTrainingLosses();
        return losses[losses.length - 1];
    }

    @DataProvider
    public Object[][] bad() {
        UnaryOperator<ParallelClassifier> asItIs = each -> each;
        Dataset<Row> unread = numbers("int(raise_error('a row was read'))"); // told before rows
        return new Object[][] {
            {"no column 'feature'", with(each -> each.setFeaturesCol("feature")), numbers("0")},
            {"no column 'label'", asItIs, rows},
            {
                "column 'label' is of type string",
                asItIs,
                rows.withColumn("label", functions.col("direction"))
            },
            {"The DataFrame is empty", asItIs, numbers("0").limit(0)},
            {
                "column 'features' is an array, and sparse features are a vector",
                with(each -> each.setEmbeddingUnits(4)),
                rows.selectExpr("array(1f) as features", "number as label")
            },
            {
                "Row \\d+ of partition \\d has 2 features, those before it 3",
                with(each -> each.setEmbeddingUnits(4)),
                vectors("if(number = 42, array(1f, 2f), array(1f, 0f, 2f))")
            },
            {
                "Row \\d+ of partition \\d is bad: feature 2 is NaN: .*",
                with(each -> each.setEmbeddingUnits(4)),
                vectors("array(0f, 0f, if(number = 5, float('NaN'), 2f))")
            },
            {
                "Row \\d+ of partition \\d has no features",
                with(each -> each.setEmbeddingUnits(4)),
                vectors("if(number = 5, null, array(1f))")
            },
            {"column 'label' is of type array<float>", asItIs, numbers("array(1f)")},
            {
                "has null as labels: a row without labels has an empty array",
                asItIs,
                numbers("if(number = 5, null, array(1))")
            },
            {"has the label null, which is no class", asItIs, numbers("array(1, null)")},
            {
                "has the label 42, which is no class: there are 40, from 0 to 39",
                with(each -> each.setNumClasses(40)),
                numbers("array(1L, if(number = 42, 42L, 1L))")
            },
            {
                "has the label c, which is no class: there are 2 names \\(setClassNames\\)",
                with(each -> each.setClassNames("a", "b")),
                numbers("array('a', 'c')")
            },
            {
                "The name 'a' is that of two classes",
                with(each -> each.setClassNames("a", "b", "a")),
                numbers("array('a')")
            },
            {
                "Row \\d+ of partition \\d has the label 42, which is no class: there are 40,"
                        + " from 0 to 39 .*: \\[\\[.*42.*\\]",
                with(each -> each.setNumClasses(40)),
                numbers("if(number = 42, 42, 1)")
            },
            {"has the label 0.5, which is no class", asItIs, numbers("0.5")},
            {"has the label -1, which is no class", asItIs, numbers("-1")},
            {"has no label", asItIs, numbers("if(number = 7, null, 1)")},
            {
                "Row \\d+ of partition \\d is bad: feature 1 is NaN: .*",
                asItIs,
                rows.selectExpr(
                        "array(1.0f, if(number = 5, float('NaN'), 2f)) as features",
                        "number as label")
            },
            {
                "has 1 features, those before it 2|has 2 features, those before it 1",
                asItIs,
                rows.selectExpr(
                        "if(number = 5, array(1f), array(1f, 2f)) as features", "number as label")
            },
            {
                "Row 0 of partition \\d has features of length 0: they need 1 value or more"
                        + " \\(setFeaturesCol\\): \\[.*",
                asItIs,
                rows.selectExpr("cast(array() as array<float>) as features", "number as label")
            },
            {
                "headMargin \\[16.0, 1.0, 0.2, 0.0\\] needs the loss softmax \\(setLoss\\)",
                with(each -> each.setHeadMargin(16, 1, 0.2, 0).setLoss("one-vs-all")),
                numbers("number % 4")
            },
            {
                "headMargin \\[16.0, 1.0, 0.2, 0.0\\] needs a head without a bias, .* call"
                        + " setHeadBias\\(false\\)",
                with(each -> each.setHeadMargin(16, 1, 0.2, 0)),
                numbers("number % 4")
            },
            {
                "The batch of 15 rows is not shared out to 2 ranks alike: .* such as 14",
                with(each -> each.setBatchSize(15)),
                numbers("0")
            },
            {
                "2 names of classes and 4 classes: leave out setNumClasses",
                with(each -> each.setClassNames("a", "b").setNumClasses(4)),
                numbers("number % 4")
            },
            {
                "checkpointFolder hdfs://host/run is no path",
                with(each -> each.setCheckpointFolder("hdfs://host/run")),
                unread
            },
            {"optimizer given invalid value rms", with(each -> each.setOptimizer("rms")), unread},
            {
                "one of float32, bfloat16, .*, not x",
                with(each -> each.setHeadPrecision("x")),
                unread
            },
            {
                "hiddenLayers is \\[8, 0\\]: each layer needs 1 unit or more. setHiddenLayers",
                with(each -> each.setHiddenLayers(8, 0)),
                unread
            },
            {
                "labelSmoothing given invalid value 2.0",
                with(each -> each.setLabelSmoothing(2)),
                unread
            },
            {
                "labelSmoothing given invalid value NaN",
                with(each -> each.setLabelSmoothing(Double.NaN)),
                unread
            },
            {"numClasses given invalid value -5", with(each -> each.setNumClasses(-5)), unread},
            {
                "sample share must be above 0 and up to 1, not 0.0",
                with(each -> each.setHeadSampleShare(0)),
                unread
            },
            {
                "checkpointInterval is 3, and there is no folder .* \\(setCheckpointFolder\\)",
                with(each -> each.setCheckpointInterval(3)),
                unread
            },
            {
                "body no.such.Body cannot be made",
                with(each -> each.setBody("no.such.Body")),
                unread
            },
            {
                "2 ranks, 1 in each task, need 2 JVMs, and with the master local\\[1\\] there is"
                        + " one: leave the ranks of a task out, or set them to 2"
                        + " \\(optRanksPerTask",
                with(each -> each.setRanksPerTask(1)),
                unread
            },
            {
                "2 ranks need 2 classes or more, .* there are 1: ask for fewer ranks",
                asItIs,
                numbers("0")
            },
            {
                "feature 1 is 1.0E300, beyond float32",
                asItIs,
                rows.selectExpr(
                        "array(1.0d, if(number = 5, 1e300d, 2d)) as features", "number as label")
            },
        };
    }

    private static UnaryOperator<ParallelClassifier> with(
            UnaryOperator<ParallelClassifier> settings) {
        return settings;
    }

    private Dataset<Row> vectors(String array) {
        Dataset<Row> arrays = rows.selectExpr(array + " as values", "number as label");
        return arrays.withColumn(
                "features",
                functions.when(
                        arrays.col("values").isNotNull(),
                        org.apache.spark.ml.functions.array_to_vector(arrays.col("values"))));
    }

    private Dataset<Row> numbers(String label) {
        return rows.selectExpr("features", label + " as label", "number");
    }

    @Test(dataProvider = "bad", timeOut = 60_000)
    public void badInputIsRefusedAtTheDriver(
            String message, UnaryOperator<ParallelClassifier> settings, Dataset<Row> data) {
        RuntimeException e =
                Assert.expectThrows(
                        RuntimeException.class, () -> settings.apply(classifier()).fit(data));
        Assert.assertTrue(
                e instanceof IllegalArgumentException || e instanceof IllegalStateException,
                e.toString());
        Assert.assertTrue(e.getMessage().matches("(?s).*(" + message + ").*"), e.getMessage());
    }

    @Test(timeOut = 60_000)
    public void dynamicAllocationIsRefusedBeforeRowsAreRead() {
        SparkConf conf = spark.sparkContext().conf();
        conf.set("spark.dynamicAllocation.enabled", "true");
        conf.set("spark.dynamicAllocation.testing", "true"); // on the master local, too
        try {
            badInputIsRefusedAtTheDriver(
                    "set spark.dynamicAllocation.enabled to false", each -> each, numbers("0.5"));
        } finally {
            conf.remove("spark.dynamicAllocation.enabled");
            conf.remove("spark.dynamicAllocation.testing");
        }
    }

    @Test(timeOut = 60_000)
    public void anInterruptEndsTheReadingOfTheRows() {
        Thread caller = Thread.currentThread();
        Dataset<Row> slow =
                spark.createDataFrame(
                        rows.javaRDD()
                                .map(
                                        row -> {
                                            Thread.sleep(100_000);
                                            return row;
                                        }),
                        rows.schema());
        whenAJobRuns(caller::interrupt);
        SparkJobException e =
                Assert.expectThrows(
                        SparkJobException.class,
                        () -> classifier().setLabelCol("number").fit(slow));
        Assert.assertTrue(Thread.interrupted(), "what was heard is passed on");
        Assert.assertTrue(e.getMessage().contains("nterrupted"), e.getMessage());
        Assert.assertEquals(numbers("0").count(), ROWS, "the session's only core is free again");
    }

    /** Last, since the session keeps what is set. */
    @Test(timeOut = 60_000)
    public void tooLittleNativeMemoryIsToldBeforeTheTraining() {
        Dataset<Row> few = numbers("0").limit(1);
        RuntimeException e =
                Assert.expectThrows(
                        RuntimeException.class,
                        () ->
                                new ParallelClassifier()
                                        .setRanks(2)
                                        .setNumClasses(40_000_000)
                                        .fit(few));
        Assert.assertTrue(
                e.getMessage()
                        .matches(
                                "(?s)ranks 0-1 \\(task 0 of 1, executor driver on .*The executor"
                                        + " has 384 MiB of native memory"
                                        + " \\(spark.executor.memoryOverhead\\), .* need \\d+ MiB:"
                                        + " set spark.executor.memoryOverhead to \\d+m.*"),
                e.getMessage());
    }

    /** DJL alone loads what was saved for it, and finds the same. */
    private static void checkPlainDjl(ParallelClassificationModel model, List<Row> predicted)
            throws Exception {
        Path folder = Files.createTempDirectory("djl");
        model.saveAsDjl(folder);
        try (Model plain = Model.newInstance("classifier", Device.cpu(), "PyTorch");
                NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
            plain.setBlock(
                    new SequentialBlock()
                            .add(Linear.builder().setUnits(8).build())
                            .add(Activation::relu)
                            .add(Linear.builder().setUnits(4).build()));
            plain.load(folder);
            for (Row row : predicted) {
                org.apache.spark.ml.linalg.Vector features = row.getAs("features");
                float[] values = new float[3];
                for (int i = 0; i < 3; i++) {
                    values[i] = (float) features.apply(i);
                }
                NDArray logits =
                        plain.getBlock()
                                .forward(
                                        new ParameterStore(manager, false),
                                        new NDList(manager.create(values, new Shape(1, 3))),
                                        false)
                                .singletonOrThrow();
                Assert.assertEquals(
                        (double) logits.argMax().getLong(), row.<Double>getAs("prediction"));
            }
        }
        Assert.assertEquals(
                Files.readAllLines(folder.resolve("synset.txt")), List.of(model.getClassNames()));
    }
}
