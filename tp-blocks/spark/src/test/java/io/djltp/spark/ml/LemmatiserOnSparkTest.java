package io.djltp.spark.ml;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.ParameterStore;

import io.djltp.examples.lemma.Language;
import io.djltp.examples.lemma.LemmaCorpus;
import io.djltp.nn.ClassificationHead;
import io.djltp.spark.SparkJobException;
import io.djltp.spark.TestCluster;
import io.djltp.zoo.lemma.CharNGrams;
import io.djltp.zoo.lemma.LemmaNetwork;

import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The lemmatiser, on words of the German dictionary, trained from a DataFrame on two executors: on
 * some of them, or with {@code -Ddjltp.spark.full=true} with all 120,658 lemmas as classes.
 */
public class LemmatiserOnSparkTest {

    private static final boolean FULL = Boolean.getBoolean("djltp.spark.full");
    private static final int WORDS = FULL ? 8192 : 1003;
    private static final int TABLE = FULL ? 1 << 17 : 4096;
    private static final int DIM = FULL ? 64 : 16;
    private static final int BATCH = FULL ? 512 : 64;
    private static final int EPOCHS = FULL ? 2 : 3;
    private static final int CHECKED = 256; // predictions: with all logits of so many words
    private static final float RATE = 0.01f;

    private static final Logger logger = LoggerFactory.getLogger(LemmatiserOnSparkTest.class);

    private SparkSession spark;
    private Dataset<Row> words;
    private final List<String> lemmas = new ArrayList<>();

    @BeforeClass
    public void start() throws IOException {
        LemmaCorpus corpus = LemmaCorpus.read(List.of(Language.DE));
        CharNGrams nGrams = new CharNGrams(TABLE, 24);
        Map<Integer, Integer> classes = new LinkedHashMap<>();
        List<Row> rows = new ArrayList<>();
        for (int i = 0; FULL && i < corpus.classes(); i++) {
            classes.put(i, i);
            lemmas.add(corpus.lexicon().lemma(i));
        }
        int stride = FULL ? corpus.size() / WORDS : 40;
        for (int i = 0; i < WORDS; i++) {
            String word = corpus.form(i * stride);
            int lemma = corpus.classOf(i * stride);
            int label = classes.computeIfAbsent(lemma, key -> classes.size());
            if (label == lemmas.size()) {
                lemmas.add(corpus.lexicon().lemma(lemma));
            }
            List<Integer> ids = Arrays.stream(nGrams.rowsOf(word)).boxed().toList();
            rows.add(RowFactory.create(word, ids, label));
        }
        StructType schema =
                new StructType()
                        .add("word", DataTypes.StringType)
                        .add("ngrams", DataTypes.createArrayType(DataTypes.IntegerType))
                        .add("lemma", DataTypes.IntegerType);
        spark = TestCluster.twoExecutors();
        words = spark.createDataFrame(rows, schema).repartition(3).cache();
    }

    @AfterClass(alwaysRun = true)
    public void stop() {
        if (spark != null) {
            spark.stop();
        }
    }

    private ParallelClassifier classifier(String... more) {
        List<String> arguments = new ArrayList<>(List.of("rows=" + TABLE, "dim=" + DIM));
        arguments.addAll(List.of(more));
        return new ParallelClassifier()
                .setFeaturesCol("ngrams")
                .setLabelCol("lemma")
                .setClassNames(lemmas.toArray(new String[0]))
                .setBody(LemmaBody.class.getName())
                .setBodyArguments(arguments.toArray(new String[0]))
                .setHeadSigma(LemmaNetwork.HEAD_SIGMA)
                .setRanks(2)
                .setBatchSize(BATCH)
                .setEpochs(EPOCHS)
                .setLearningRate(RATE);
    }

    @Test(timeOut = 600_000)
    public void twoExecutorsReachTheLossesOfOneJvmTwiceInARow() throws Exception {
        ParallelClassificationModel first = classifier().fit(words);
        ParallelClassificationModel second = classifier().fit(words);
        Assert.assertEquals(second.network().parameters(), first.network().parameters());
        List<int[]> ids = new ArrayList<>();
        List<Long> labels = new ArrayList<>();
        for (Row row : words.collectAsList()) {
            ids.add(row.<Integer>getList(1).stream().mapToInt(Integer::intValue).toArray());
            labels.add((long) row.getInt(2));
        }
        ClassificationHead head =
                ClassificationHead.builder()
                        .setUnits(lemmas.size())
                        .optBatchShardedInput(true)
                        .build();
        LemmaNetwork.initializeHead(head);
        Block network = LemmaNetwork.create(TABLE, DIM, head);
        try (Model model = Model.newInstance("one", Device.cpu(), "PyTorch")) {
            List<Double> losses = OneJvm.train(model, network, ids, labels, 2, BATCH, EPOCHS, RATE);
            logger.info(
                    "{} classes, losses of two executors {}, of one JVM {}",
                    lemmas.size(),
                    Arrays.toString(first.getTrainingLosses()),
                    losses);
            Assert.assertTrue(losses.get(EPOCHS - 1) < 0.9 * losses.get(0), "it learns: " + losses);
            for (int epoch = 0; epoch < EPOCHS; epoch++) {
                double loss = losses.get(epoch);
                Assert.assertEquals(first.getTrainingLosses()[epoch], loss, 1e-5 * loss);
            }
            checkPredictions(first, network, ids);
        }
    }

    private void checkPredictions(
            ParallelClassificationModel model, Block network, List<int[]> ids) {
        List<Row> predicted = model.setTopK(3).transform(words).collectAsList();
        Assert.assertEquals(predicted.size(), WORDS);
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
            int[] flat = ids.stream().limit(CHECKED).flatMapToInt(Arrays::stream).toArray();
            NDArray input = manager.create(flat, new Shape(CHECKED, ids.get(0).length));
            NDArray logits =
                    network.forward(new ParameterStore(manager, false), new NDList(input), false)
                            .singletonOrThrow();
            long[] best = logits.argMax(1).toLongArray();
            float[] probabilities = logits.softmax(1).max(new int[] {1}).toFloatArray();
            for (int i = 0; i < CHECKED; i++) {
                Row row = predicted.get(i);
                List<Row> top = row.getList(row.fieldIndex("topClasses"));
                Assert.assertEquals(row.getDouble(row.fieldIndex("prediction")), (double) best[i]);
                Assert.assertEquals(top.size(), 3);
                Assert.assertEquals(top.get(0).getLong(0), best[i]);
                Assert.assertEquals(top.get(0).getString(1), lemmas.get((int) best[i]));
                Assert.assertEquals(
                        top.get(0).getFloat(2), probabilities[i], 1e-4f * probabilities[i]);
            }
        }
    }

    @Test(timeOut = 120_000)
    public void aKilledExecutorIsNamedAndTheNextFitWorks() throws IOException {
        Path mark = Files.createTempDirectory("kill").resolve("mark");
        ParallelClassifier classifier = classifier("kill=" + mark).setEpochs(1);
        SparkJobException e =
                Assert.expectThrows(SparkJobException.class, () -> classifier.fit(words));
        Assert.assertTrue(
                e.getMessage().matches("(?s)(rank|task) 1.*executor \\d+ on \\S+.*"),
                e.getMessage());
        Assert.assertEquals(classifier.fit(words).getNumClasses(), lemmas.size());
    }
}
