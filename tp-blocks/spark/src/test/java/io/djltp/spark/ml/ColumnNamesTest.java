package io.djltp.spark.ml;

import io.djltp.testing.Refusals;

import org.apache.spark.ml.feature.StringIndexer;
import org.apache.spark.ml.param.ParamMap;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** Names of columns mean what they mean elsewhere in Spark ML. */
public class ColumnNamesTest extends OnThreeClasses {

    private static final String CASES = "spark.sql.caseSensitive";

    public ColumnNamesTest() {
        super(30);
    }

    private ParallelClassificationModel model(String prediction, String topClasses) {
        return model.copy(ParamMap.empty())
                .setPredictionCol(prediction)
                .setTopClassesCol(topClasses);
    }

    @DataProvider
    public Object[][] outputs() {
        return new Object[][] {
            {"", "t", new String[] {"features", "label", "t"}},
            {"p", "", new String[] {"features", "label", "p"}},
            {"", "", new String[] {"features", "label"}},
        };
    }

    @Test(dataProvider = "outputs", timeOut = 60_000)
    public void anEmptyNameLeavesAColumnOut(String prediction, String top, String[] columns) {
        ParallelClassificationModel changed = model(prediction, top);
        Dataset<Row> found = changed.transform(rows);
        Assert.assertEquals(found.columns(), columns);
        Assert.assertEquals(changed.transformSchema(rows.schema()), found.schema());
        Row[] all = (Row[]) model.transform(rows).collect();
        Row[] some = (Row[]) found.collect();
        for (int i = 0; i < all.length; i++) {
            if (!prediction.isEmpty()) {
                Assert.assertEquals(some[i].get(2), all[i].get(2));
            }
            if (!top.isEmpty()) {
                Assert.assertEquals(some[i].getList(2), all[i].getList(3));
            }
            Assert.assertEquals(some[i].size(), columns.length);
        }
    }

    @Test(timeOut = 60_000)
    public void upperAndLowerCaseAreTheSameUnlessSparkTellsThemApart() {
        Dataset<Row> named =
                rows.selectExpr("features", "elt(1 + int(label), 'a', 'b', 'c') as name");
        Dataset<Row> indexed =
                new StringIndexer()
                        .setInputCol("name")
                        .setOutputCol("label")
                        .fit(named)
                        .transform(named);
        ParallelClassificationModel trained =
                classifier().setFeaturesCol("FEATURES").setLabelCol("Label").fit(indexed);
        Assert.assertEquals(trained.getClassNames().length, 3, "names of the indexer");
        Assert.assertEquals(trained.transform(indexed).select("PREDICTION").count(), 24);
        refused("has a column 'LABEL' already", () -> model("LABEL", "t").transform(rows));
        String both = "predictionCol and topClassesCol are both 'p': give one another name";
        refused(both, () -> model("p", "P").transform(rows));
        refused(both, () -> classifier().setPredictionCol("p").setTopClassesCol("p").fit(rows));
        Dataset<Row> twice = rows.selectExpr("features", "label", "label as LABEL");
        refused(
                "has 2 columns 'label': its columns are [features, label, LABEL]; rename them, or"
                        + " set spark.sql.caseSensitive",
                () -> classifier().fit(twice));
        spark.conf().set(CASES, "true");
        try {
            refused(
                    "has no column 'FEATURES'",
                    () -> classifier().setFeaturesCol("FEATURES").fit(rows));
            Assert.assertEquals(
                    model("LABEL", "").transform(rows).columns(),
                    new String[] {"features", "label", "LABEL"});
        } finally {
            spark.conf().unset(CASES);
        }
    }

    private static void refused(String message, Assert.ThrowingRunnable action) {
        Refusals.throwsArgument(action, message);
    }
}
