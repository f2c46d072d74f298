package io.djltp.spark.ml;

import io.djltp.spark.TestCluster;

import org.apache.spark.SparkConf;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;

import java.io.IOException;

/**
 * A test of a model that has been trained on 24 rows of three classes, in a session of a thread.
 */
abstract class OnThreeClasses {

    private final int epochs;

    SparkSession spark;
    Dataset<Row> rows;
    ParallelClassificationModel model;

    OnThreeClasses(int epochs) {
        this.epochs = epochs;
    }

    @BeforeClass
    public void start() throws IOException {
        spark = TestCluster.start("local[1]", new SparkConf());
        rows =
                spark.range(24)
                        .selectExpr("array(1f, float(id % 3)) as features", "id % 3 as label");
        model = classifier().fit(rows);
    }

    @AfterClass(alwaysRun = true)
    public void stop() {
        if (spark != null) {
            spark.stop();
        }
    }

    ParallelClassifier classifier() {
        return new ParallelClassifier().setRanks(2).setBatchSize(8).setEpochs(epochs);
    }
}
