package io.djltp.spark.ml;

import io.djltp.spark.OnSpark;
import io.djltp.spark.SparkJobException;
import io.djltp.testing.Refusals;

import org.apache.spark.ml.Model;
import org.apache.spark.ml.Pipeline;
import org.apache.spark.ml.PipelineModel;
import org.apache.spark.ml.PipelineStage;
import org.apache.spark.ml.Transformer;
import org.apache.spark.ml.evaluation.MulticlassClassificationEvaluator;
import org.apache.spark.ml.feature.IndexToString;
import org.apache.spark.ml.feature.StringIndexer;
import org.apache.spark.ml.feature.VectorAssembler;
import org.apache.spark.ml.param.ParamMap;
import org.apache.spark.ml.tuning.CrossValidator;
import org.apache.spark.ml.tuning.CrossValidatorModel;
import org.apache.spark.ml.tuning.ParamGridBuilder;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.api.java.UDF0;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataTypes;
import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

/** The classifier among the other stages of Spark ML, and under its search for parameters. */
public class TuningTest extends OnSpark {

    private static final AtomicInteger READ = new AtomicInteger();

    private Dataset<Row> rows;

    public TuningTest() {
        super(LOCAL);
    }

    @BeforeClass
    public void makeRows() {
        rows = directions(48).drop("features").withColumnRenamed("direction", "name");
    }

    private static ParallelClassifier classifier() {
        return new ParallelClassifier()
                .setHiddenLayers(8)
                .setBatchSize(16)
                .setEpochs(20)
                .setLearningRate(0.05);
    }

    private static Pipeline pipeline(ParallelClassifier classifier) {
        return new Pipeline()
                .setStages(
                        new PipelineStage[] {
                            new VectorAssembler()
                                    .setInputCols(new String[] {"x", "y"})
                                    .setOutputCol("features"),
                            new StringIndexer().setInputCol("name").setOutputCol("label"),
                            classifier,
                            new IndexToString()
                                    .setInputCol("prediction")
                                    .setOutputCol("found")
                                    .setLabels(new String[] {"east", "north", "south", "west"})
                        });
    }

    @Test(timeOut = 120_000)
    public void itIsAStageOfAPipeline() throws IOException {
        PipelineModel model = pipeline(classifier()).fit(rows);
        Dataset<Row> found = model.transform(rows);
        Assert.assertEquals(found.filter("found = name").count(), 48);
        Assert.assertEquals(model.transformSchema(rows.schema()).fieldNames(), found.columns());
        Assert.assertEquals(
                found.schema().apply("topClasses"),
                model.transformSchema(rows.schema()).apply("topClasses"));
    }

    @Test(timeOut = 240_000)
    public void aCrossValidatorFindsTheBetterLearningRate() throws IOException {
        ParallelClassifier classifier = classifier();
        ParamMap[] grid =
                new ParamGridBuilder()
                        .addGrid(classifier.learningRate(), new double[] {1e-7, 0.05})
                        .build();
        CrossValidatorModel best =
                new CrossValidator()
                        .setEstimator(pipeline(classifier))
                        .setEvaluator(
                                new MulticlassClassificationEvaluator().setMetricName("accuracy"))
                        .setEstimatorParamMaps(grid)
                        .setNumFolds(2)
                        .setSeed(3)
                        .fit(rows);
        double[] accuracy = best.avgMetrics();
        Assert.assertTrue(accuracy[1] > 0.95 && accuracy[0] < 0.9, Arrays.toString(accuracy));
        Transformer stage = ((PipelineModel) best.bestModel()).stages()[2];
        Object rate = ((Model<?>) stage).parent().getOrDefault(classifier.learningRate());
        Assert.assertEquals(rate, 0.05);
        String folder = Files.createTempDirectory("validated").toString();
        best.write().overwrite().save(folder);
        List<Row> again = CrossValidatorModel.load(folder).transform(rows).collectAsList();
        Assert.assertEquals(again, best.transform(rows).collectAsList());
    }

    @Test(timeOut = 60_000)
    public void parametersAreCheckedAndACopyHasTheName() {
        ParallelClassifier classifier = classifier();
        Assert.assertEquals(classifier.copy(new ParamMap()).uid(), classifier.uid());
        Refusals.throwsArgument(() -> classifier.setEpochs(0));
        Refusals.throwsArgument(() -> classifier.setMaxAttempts(0));
    }

    @Test(timeOut = 120_000)
    public void aFitWithOtherParametersAndAModelWithOtherColumns() {
        Dataset<Row> numbered =
                rows.selectExpr("array(float(x), float(y)) as point", "int(x > 0) as side");
        ParallelClassifier classifier =
                classifier().setFeaturesCol("point").setLabelCol("side").setEpochs(1);
        ParallelClassificationModel model =
                classifier.fit(numbered, new ParamMap().put(classifier.topK().w(1)));
        Dataset<Row> found =
                model.setPredictionCol("p")
                        .setTopClassesCol("t")
                        .transform(numbered.withColumnRenamed("side", "prediction"));
        Assert.assertEquals(found.columns(), new String[] {"point", "prediction", "p", "t"});
        Assert.assertEquals(found.first().getList(3).size(), 1, "topK of the fit");
        Assert.assertEquals(model.parent().getOrDefault(classifier.topK()), 1);
    }

    @Test(timeOut = 60_000)
    public void rowsThatChangeFromOneReadingToTheNextAreRefused() {
        UDF0<Float> next = () -> (float) READ.incrementAndGet();
        Dataset<Row> changing =
                rows.select(
                        functions
                                .array(
                                        functions
                                                .udf(next, DataTypes.FloatType)
                                                .asNondeterministic()
                                                .apply())
                                .as("features"),
                        functions.lit(1).as("label"));
        SparkJobException e =
                Assert.expectThrows(SparkJobException.class, () -> classifier().fit(changing));
        Assert.assertTrue(
                e.getMessage().matches(".*Partition [01] of the DataFrame has other rows.*"),
                e.getMessage());
    }
}
