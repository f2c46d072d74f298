package io.djltp.spark.ml;

import io.djltp.spark.OnSpark;

import org.apache.spark.ml.linalg.Vector;
import org.apache.spark.ml.linalg.VectorUDT;
import org.apache.spark.ml.linalg.Vectors;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;

/** Sparse vectors, and rows with several labels, on two executors. */
public class SparseFeaturesTest extends OnSpark {

    private static final int ROWS = 43;
    private static final int FEATURES = 136_000;
    private static final int CLASSES = 7;
    private static final List<String> NAMES =
            IntStream.range(0, CLASSES).mapToObj(i -> "class " + (char) ('a' + i)).toList();

    private Dataset<Row> rows;

    public SparseFeaturesTest() {
        super(TWO_EXECUTORS);
    }

    /** Makes rows with a feature for each label; row 5 has neither features nor labels. */
    @BeforeClass
    public void makeRows() {
        Random random = new Random(1);
        List<Row> all = new ArrayList<>();
        for (int i = 0; i < ROWS; i++) {
            int[] labels = random.ints(i == 5 ? 0 : 1 + i % 3, 0, CLASSES).distinct().toArray();
            int[] places = IntStream.of(labels).sorted().map(each -> 19_000 * each).toArray();
            double[] values = Arrays.stream(places).mapToDouble(each -> 1 + each * 1e-6).toArray();
            Vector sparse = Vectors.sparse(FEATURES, places, values);
            List<Integer> twice = new ArrayList<>(IntStream.of(labels).boxed().toList());
            twice.addAll(List.copyOf(twice));
            all.add(
                    RowFactory.create(
                            i % 8 == 1 ? sparse.toDense() : sparse,
                            twice.toArray(Integer[]::new),
                            twice.stream().map(NAMES::get).toArray(String[]::new),
                            labels.length == 0 ? 0 : labels[0]));
        }
        StructType schema =
                new StructType()
                        .add("features", new VectorUDT())
                        .add("numbers", DataTypes.createArrayType(DataTypes.IntegerType))
                        .add("names", DataTypes.createArrayType(DataTypes.StringType))
                        .add("first", DataTypes.IntegerType);
        rows = spark.createDataFrame(all, schema).repartition(3).cache();
    }

    private static ParallelClassifier classifier(String label, String loss) {
        return new ParallelClassifier()
                .setLabelCol(label)
                .setLoss(loss)
                .setEmbeddingUnits(16)
                .setOptimizer("adagrad")
                .setLearningRate(0.3)
                .setBatchSize(44) // all rows: whatever the ranks, a step has the same ones
                .setEpochs(20);
    }

    @DataProvider
    public Object[][] labels() {
        return new Object[][] {
            {"numbers", "softmax"},
            {"names", "softmax"},
            {"first", "softmax"},
            {"names", "one-vs-all"},
            {"first", "one-vs-all"},
        };
    }

    @Test(dataProvider = "labels", timeOut = 120_000)
    public void ranksInOneJvmAndInTwoLearnWhatOneRankLearns(String label, String loss)
            throws IOException {
        ParallelClassificationModel one = classifier(label, loss).setRanks(1).fit(rows);
        double[] losses = one.getTrainingLosses();
        Assert.assertTrue(losses[19] < 0.6 * losses[0], Arrays.toString(losses));
        for (int ranksPerTask = 1; ranksPerTask <= 2; ranksPerTask++) {
            ParallelClassificationModel two =
                    classifier(label, loss).setRanks(2).setRanksPerTask(ranksPerTask).fit(rows);
            for (int i = 0; i < losses.length; i++) {
                Assert.assertEquals(two.getTrainingLosses()[i], losses[i], 1e-5 * losses[i]);
            }
        }
        Assert.assertEquals(one.getNumClasses(), CLASSES);
        List<Row> predicted = one.setTopK(3).transform(rows).collectAsList();
        for (Row row : predicted) {
            Set<Object> labels = new HashSet<>();
            if (label.equals("first")) {
                labels.add(row.<Integer>getAs(label).toString());
            } else {
                row.getList(row.fieldIndex(label)).forEach(each -> labels.add(each.toString()));
            }
            List<Row> top = row.getList(row.fieldIndex("topClasses"));
            List<String> best = top.stream().map(each -> each.<String>getAs("name")).toList();
            Assert.assertTrue(best.containsAll(labels), row.toString());
            if (loss.equals("one-vs-all")
                    && label.equals("names")) { // each class has a probability of its own
                for (Row each : top) {
                    float probability = each.getAs("probability");
                    boolean right = labels.contains(each.getAs("name"));
                    Assert.assertEquals(probability > 0.5, right, row.toString());
                }
            }
        }
        String folder = Files.createTempDirectory("sparse").toString();
        one.write().overwrite().save(folder);
        Assert.assertEquals(
                ParallelClassificationModel.load(folder).transform(rows).collectAsList(),
                predicted);
    }

    /** The ranks get 8 bytes for each value that is not zero, and not 4 for each feature. */
    @Test(timeOut = 120_000)
    public void sparseRowsAreShuffledWithoutTheirZeros() throws Exception {
        AtomicLong written = new AtomicLong();
        SparkListener listener =
                new SparkListener() {
                    @Override
                    public void onTaskEnd(SparkListenerTaskEnd end) {
                        written.addAndGet(end.taskMetrics().shuffleWriteMetrics().bytesWritten());
                    }
                };
        rows.count(); // cached
        spark.sparkContext().addSparkListener(listener);
        classifier("numbers", "softmax").setRanks(2).setEpochs(1).fit(rows);
        spark.sparkContext().listenerBus().waitUntilEmpty(10_000);
        spark.sparkContext().removeSparkListener(listener);
        Assert.assertTrue(written.get() > 0 && written.get() < 200 * ROWS, written + " bytes");
    }
}
