package io.djltp.spark.ml;

import io.djltp.spark.OnSpark;
import io.djltp.spark.TensorParallelSpark;

import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Files;
import java.util.List;

/** Two executors whose data Kryo serializes, which takes no class that it was not told of. */
public class KryoTest extends OnSpark {

    public KryoTest() {
        super(
                TWO_EXECUTORS,
                "spark.serializer",
                "org.apache.spark.serializer.KryoSerializer",
                "spark.kryo.registrationRequired",
                "true",
                "spark.kryo.classesToRegister",
                SharedNetwork.class.getName());
    }

    @Test(timeOut = 120_000)
    public void theClassifierTrainsPredictsAndIsSavedAndLoaded() throws IOException {
        Dataset<Row> rows =
                directions(41)
                        .selectExpr("features", "number % 4 as label", "array(direction) as names");
        ParallelClassificationModel model =
                new ParallelClassifier()
                        .setRanks(2)
                        .setLabelCol("names")
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
}
