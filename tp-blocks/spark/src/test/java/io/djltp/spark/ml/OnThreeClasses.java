package io.djltp.spark.ml;

import io.djltp.spark.OnSpark;

import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.testng.annotations.BeforeClass;

/**
 * A test of a model that has been trained on 24 rows of three classes, in a session of a thread.
 */
abstract class OnThreeClasses extends OnSpark {

    private final int epochs;

    Dataset<Row> rows;
    ParallelClassificationModel model;

    OnThreeClasses(int epochs) {
        super(LOCAL);
        this.epochs = epochs;
    }

    @BeforeClass
    public void fit() {
        rows =
                spark.range(24)
                        .selectExpr("array(1f, float(id % 3)) as features", "id % 3 as label");
        model = classifier().fit(rows);
    }

    ParallelClassifier classifier() {
        return new ParallelClassifier().setRanks(2).setBatchSize(8).setEpochs(epochs);
    }
}
