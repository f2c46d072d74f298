package io.djltp.spark.ml;

import io.djltp.spark.SparkJobException;
import io.djltp.spark.TensorParallelSpark;
import io.djltp.spark.TestCluster;

import org.apache.spark.SparkConf;
import org.apache.spark.ml.linalg.VectorUDT;
import org.apache.spark.ml.linalg.Vectors;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Files;
import java.util.List;
import java.util.stream.IntStream;

/** Two executors whose data Kryo serializes, which takes no class that it was not told of. */
public class KryoTest {

    private static final int CLASSES = 4;

    private SparkSession spark;

    @BeforeClass
    public void start() throws IOException {
        spark =
                TestCluster.twoExecutors(
                        new SparkConf()
                                .set(
                                        "spark.serializer",
                                        "org.apache.spark.serializer.KryoSerializer")
                                .set("spark.kryo.registrationRequired", "true")
                                .set(
                                        "spark.kryo.classesToRegister",
                                        SharedNetwork.class.getName()));
    }

    @AfterClass(alwaysRun = true)
    public void stop() {
        if (spark != null) {
            spark.stop();
        }
    }

    private Dataset<Row> rows() {
        List<Row> all =
                IntStream.range(0, 41)
                        .mapToObj(
                                i -> {
                                    double angle = i % CLASSES * Math.PI / 2 + 0.01 * i;
                                    return RowFactory.create(
                                            Vectors.dense(Math.sin(angle), Math.cos(angle)),
                                            i % CLASSES);
                                })
                        .toList();
        StructType schema =
                new StructType()
                        .add("features", new VectorUDT())
                        .add("label", DataTypes.IntegerType);
        return spark.createDataFrame(all, schema);
    }

    @Test(timeOut = 120_000)
    public void theClassifierTrainsPredictsAndIsSavedAndLoaded() throws IOException {
        Dataset<Row> rows = rows();
        ParallelClassificationModel model =
                new ParallelClassifier()
                        .setRanks(2)
                        .setHiddenLayers(8)
                        .setBatchSize(8)
                        .setEpochs(30)
                        .setLearningRate(0.05)
                        .setClassNames("north", "east", "south", "west")
                        .fit(rows);
        Assert.assertEquals(model.getTrainingLosses().length, 30);
        List<Row> predicted = model.transform(rows).collectAsList();
        Assert.assertEquals(predicted.size(), 41);
        for (Row row : predicted) {
            Assert.assertEquals(row.<Double>getAs("prediction"), (double) row.getInt(1));
        }
        String folder = Files.createTempDirectory("kryo").toString();
        model.write().overwrite().save(folder);
        Assert.assertEquals(
                ParallelClassificationModel.load(folder).transform(rows).collectAsList(),
                predicted);
    }

    /** What a function returns: a record, of which Kryo can make none. */
    private record Told(int ranks, List<String> words) implements Serializable {}

    @Test(timeOut = 120_000)
    public void aFunctionReturnsWhatJavaSerializes() {
        Assert.assertEquals(
                TensorParallelSpark.run(
                        spark, 2, ranks -> new Told(ranks.getRanks(), List.of("a", "b"))),
                new Told(2, List.of("a", "b")));
        Object none = TensorParallelSpark.run(spark, 2, ranks -> null);
        Assert.assertNull(none);
        byte[] large = TensorParallelSpark.run(spark, 2, ranks -> new byte[20_000_001]);
        Assert.assertEquals(large.length, 20_000_001, "in pieces");
    }

    @Test(timeOut = 120_000)
    public void whatIsNoDataIsToldAsEver() {
        SparkJobException e =
                Assert.expectThrows(
                        SparkJobException.class,
                        () -> TensorParallelSpark.run(spark, 2, ranks -> new Object()));
        Assert.assertTrue(
                e.getMessage().contains("is not serializable: java.lang.Object"), e.getMessage());
    }
}
