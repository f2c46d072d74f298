package io.djltp.spark.ml;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.metric.Metrics;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.Batch;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.training.listener.EpochTrainingListener;
import ai.djl.training.listener.EvaluatorTrainingListener;
import ai.djl.training.listener.TrainingListenerAdapter;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.translate.Batchifier;
import ai.djl.util.Progress;

import io.djltp.classes.ClassModel;
import io.djltp.classes.TextFeatures;
import io.djltp.examples.lemma.Language;
import io.djltp.examples.lemma.LemmaCorpus;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.spark.OnSpark;
import io.djltp.training.ParallelTrainer;

import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.types.StructType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * The lemmatiser, on words of the German dictionary, trained from a DataFrame on two executors: on
 * some of them, or with {@code -Ddjltp.spark.full=true} with all 120,658 lemmas as classes.
 */
public class LemmatiserOnSparkTest extends OnSpark {

    private static final boolean FULL = Boolean.getBoolean("djltp.spark.full");
    private static final int WORDS = FULL ? 8192 : 1003;
    private static final int TABLE = FULL ? 1 << 17 : 4096;
    private static final int DIM = FULL ? 64 : 16;
    private static final int RANKS = 2;
    private static final int BATCH = FULL ? 512 : 64;
    private static final int EPOCHS = FULL ? 2 : 3;
    private static final int CHECKED = 256; // predictions: with all logits of so many words
    private static final float RATE = 0.01f;

    private static final Logger logger = LoggerFactory.getLogger(LemmatiserOnSparkTest.class);

    private Dataset<Row> words;
    private final List<String> lemmas = new ArrayList<>();

    public LemmatiserOnSparkTest() {
        super(TWO_EXECUTORS);
    }

    @BeforeClass
    public void start() throws IOException {
        LemmaCorpus corpus = LemmaCorpus.read(List.of(Language.DE));
        TextFeatures features = new TextFeatures(TABLE, 2, 5, 1, 2);
        Map<Integer, Integer> classes = new LinkedHashMap<>();
        List<Row> rows = new ArrayList<>();
        for (int i = 0; FULL && i < corpus.classes(); i++) {
            classes.put(i, i);
            lemmas.add(corpus.lemma(i));
        }
        int stride = FULL ? corpus.size() / WORDS : 40;
        for (int i = 0; i < WORDS; i++) {
            String word = corpus.form(i * stride);
            int lemma = corpus.classOf(i * stride);
            int label = classes.computeIfAbsent(lemma, key -> classes.size());
            if (label == lemmas.size()) {
                lemmas.add(corpus.lemma(lemma));
            }
            List<Integer> ids =
                    Arrays.stream(Arrays.copyOf(features.ids(word), 24)).boxed().toList();
            rows.add(RowFactory.create(word, ids, label));
        }
        StructType schema = StructType.fromDDL("word string, ngrams array<int>, lemma int");
        words = spark.createDataFrame(rows, schema).repartition(3).cache();
    }

    /** The lemmatiser below its head. */
    public static final class LemmaBody implements BodyFactory {

        @Override
        public Block newBody(Map<String, String> arguments) {
            return ClassModel.newTextBody(
                    Integer.parseInt(arguments.get("rows")),
                    Integer.parseInt(arguments.get("dim")));
        }
    }

    private ParallelClassifier classifier() {
        return new ParallelClassifier()
                .setFeaturesCol("ngrams")
                .setLabelCol("lemma")
                .setClassNames(lemmas.toArray(new String[0]))
                .setBody(LemmaBody.class.getName())
                .setBodyArguments("rows=" + TABLE, "dim=" + DIM)
                .setHeadSigma(0.01f)
                .setRanks(RANKS)
                .setBatchSize(BATCH)
                .setEpochs(EPOCHS)
                .setLearningRate(RATE);
    }

    @Test(timeOut = 600_000)
    public void twoExecutorsReachTheLossesOfOneJvmTwiceInARow() throws Exception {
        ParallelClassificationModel first = classifier().fit(words);
        ParallelClassificationModel second = classifier().fit(words);
        Assert.assertEquals(second.network().parameters(), first.network().parameters());
        List<Row> rows = words.collectAsList();
        ClassificationHead head =
                ClassificationHead.builder()
                        .setUnits(lemmas.size())
                        .optBatchShardedInput(true)
                        .build();
        head.setInitializer(new NormalInitializer(0.01f), Parameter.Type.WEIGHT);
        Block network = ClassModel.newTextBody(TABLE, DIM).add(head);
        try (Model model = Model.newInstance("one", Device.cpu(), "PyTorch")) {
            model.setBlock(network);
            List<Double> losses = trainInOneJvm(model, rows);
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
            checkPredictions(first, network, rows);
        }
    }

    private void checkPredictions(
            ParallelClassificationModel model, Block network, List<Row> rows) {
        List<Row> predicted = model.setTopK(3).transform(words).collectAsList();
        Assert.assertEquals(predicted.size(), WORDS);
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
            NDArray input = ids(manager, rows.subList(0, CHECKED));
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

    private static NDArray ids(NDManager manager, List<Row> rows) {
        int[] ids =
                rows.stream()
                        .flatMap(row -> row.<Integer>getList(1).stream())
                        .mapToInt(Integer::intValue)
                        .toArray();
        return manager.create(ids, new Shape(rows.size(), ids.length / rows.size()));
    }

    /** Trains as two executors do; returns the loss of each epoch. */
    private static List<Double> trainInOneJvm(Model model, List<Row> rows) throws Exception {
        Engine.getEngine("PyTorch").setRandomSeed(42);
        List<Double> losses = new ArrayList<>();
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                        .optDevices(new Device[] {Device.cpu()})
                        .optOptimizer(
                                Optimizer.adam()
                                        .optLearningRateTracker(Tracker.fixed(RATE))
                                        .build())
                        .addTrainingListeners(
                                new EpochTrainingListener(),
                                new EvaluatorTrainingListener(),
                                new TrainingListenerAdapter() {
                                    @Override
                                    public void onEpoch(Trainer trainer) {
                                        losses.add(
                                                (double)
                                                        trainer.getTrainingResult().getTrainLoss());
                                    }
                                });
        ParallelConfig parallel =
                ParallelConfig.builder().setMode(ParallelMode.MIXED).setRanks(RANKS).build();
        try (ParallelTrainer trainer = new ParallelTrainer(model, config, parallel)) {
            trainer.setMetrics(new Metrics());
            trainer.initialize(new Shape(BATCH, rows.get(0).getList(1).size()));
            EasyTrain.fit(trainer, EPOCHS, new Batches(rows), null);
        }
        return losses;
    }

    /** Of every batch, rank r has some of the rows r, r + ranks, r + 2 ranks and so on. */
    private static final class Batches implements ai.djl.training.dataset.Dataset {

        private final List<Row> rows;
        private int epoch;

        Batches(List<Row> rows) {
            this.rows = rows;
        }

        @Override
        public Iterable<Batch> getData(NDManager manager) {
            Map<Integer, List<Row>> batches = new TreeMap<>();
            for (int rank = 0; rank < RANKS; rank++) {
                int own = (rows.size() - rank + RANKS - 1) / RANKS;
                int[] order = RankBatches.order(own, 42, epoch, rank);
                for (int i = 0; i < own; i++) {
                    batches.computeIfAbsent(i / (BATCH / RANKS), key -> new ArrayList<>())
                            .add(rows.get(order[i] * RANKS + rank));
                }
            }
            epoch++;
            return () ->
                    batches.values().stream()
                            .map(each -> batch(manager, each, batches.size()))
                            .iterator();
        }

        private static Batch batch(NDManager manager, List<Row> rows, int count) {
            NDManager scope = manager.newSubManager();
            long[] labels = rows.stream().mapToLong(row -> row.getInt(2)).toArray();
            return new Batch(
                    scope,
                    new NDList(ids(scope, rows)),
                    new NDList(scope.create(labels)),
                    labels.length,
                    Batchifier.STACK,
                    Batchifier.STACK,
                    0,
                    count);
        }

        @Override
        public void prepare(Progress progress) {}
    }
}
