package io.djltp.spark.ml;

import io.djltp.spark.TensorParallelSpark;

import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.ml.attribute.Attribute;
import org.apache.spark.ml.attribute.NominalAttribute;
import org.apache.spark.ml.param.ParamMap;
import org.apache.spark.ml.util.DefaultParamsReader;
import org.apache.spark.ml.util.DefaultParamsWritable;
import org.apache.spark.ml.util.Identifiable;
import org.apache.spark.ml.util.MLReader;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

import scala.Option;

import java.util.Arrays;
import java.util.List;

/**
 * Trains a classifier with many classes on the executors of Spark: each rank has a part of the
 * classes, and each has rows of its own up to the head (MIXED mode). The rows go from the
 * partitions of the DataFrame to the executors of the ranks, and never to the driver.
 *
 * <pre>{@code
 * ParallelClassificationModel model =
 *         new ParallelClassifier()
 *                 .setFeaturesCol("features")
 *                 .setLabelCol("label")
 *                 .setNumClasses(1_000_000)
 *                 .setHiddenLayers(256)
 *                 .setRanks(8)
 *                 .fit(training);
 * Dataset<Row> best = model.transform(test); // prediction, topClasses
 * }</pre>
 *
 * <p>Every rank has its share of each batch: row i of the DataFrame belongs to rank i mod ranks,
 * and a rank meets its rows in an order that follows from the seed. The model is that of as many
 * ranks in one JVM.
 */
public final class ParallelClassifier extends ClassifierParams implements DefaultParamsWritable {

    private static final long serialVersionUID = 1L;

    private final String uid;

    /** Creates a classifier. */
    public ParallelClassifier() {
        this(Identifiable.randomUID("parallelClassifier"));
    }

    /**
     * Creates a classifier with a name, as one that is loaded has it.
     *
     * @param uid the name
     */
    public ParallelClassifier(String uid) {
        this.uid = uid;
        setDefaults();
    }

    /**
     * Returns what loads a classifier that was saved.
     *
     * @return the reader
     */
    public static MLReader<ParallelClassifier> read() {
        return new DefaultParamsReader<>();
    }

    /**
     * Loads a classifier that was saved.
     *
     * @param path the path
     * @return the classifier
     */
    public static ParallelClassifier load(String path) {
        return read().load(path);
    }

    /** {@inheritDoc} */
    @Override
    public String uid() {
        return uid;
    }

    /** {@inheritDoc} */
    @Override
    public ParallelClassifier copy(ParamMap extra) {
        return defaultCopy(extra);
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalArgumentException if a column is missing, or of a type that cannot be read
     */
    @Override
    public StructType transformSchema(StructType schema) {
        Columns.of(schema, getFeaturesCol(), getLabelCol());
        return withPredictions(schema);
    }

    /**
     * Trains.
     *
     * @param dataset the rows, which are read twice: cache them if that takes long, or if they
     *     could change
     * @return the trained model
     * @throws IllegalArgumentException if there is no row, a column is missing, or a row is bad:
     *     its label is no class, or a feature is null, infinite or NaN
     * @throws IllegalStateException if there are fewer slots than tasks, or executors are allocated
     *     dynamically
     * @throws io.djltp.spark.SparkJobException if a task fails, or its executor is lost
     */
    @Override
    public ParallelClassificationModel fit(Dataset<?> dataset) {
        transformSchema(dataset.schema());
        check();
        Columns columns = Columns.of(dataset.schema(), getFeaturesCol(), getLabelCol());
        String[] names = names(dataset.schema().apply(columns.label()));
        int wanted = numClasses(names);
        JavaRDD<Row> rows = dataset.toDF().javaRDD();
        int ranks = getRanks();
        TensorParallelSpark job =
                TensorParallelSpark.builder()
                        .setRanks(ranks)
                        .optRanksPerTask(getRanksPerTask())
                        .optMaxAttempts(getMaxAttempts())
                        .build();
        int tasks = job.tasks(rows.context());
        plan(columns, RowCheck.Result.UNREAD);
        RowCheck.Result known = RowCheck.of(rows, columns, wanted);
        TrainingPlan plan = plan(columns, known);
        if (known.classes() < ranks) {
            throw new IllegalArgumentException(
                    ("%d ranks need %d classes or more, since each has a part of them, and there"
                                    + " are %d: ask for fewer ranks (setRanks)")
                            .formatted(ranks, ranks, known.classes()));
        }
        RankTrainer.Trained trained =
                job.run(
                        RankRows.of(rows, columns, known, ranks, tasks),
                        (own, part) -> RankTrainer.train(own, part, plan));
        return model(
                new SavedNetwork(plan.network(), trained.parameters(), names, trained.losses()));
    }

    private ParallelClassificationModel model(SavedNetwork network) {
        ParallelClassificationModel model =
                new ParallelClassificationModel(
                        Identifiable.randomUID("parallelClassificationModel"), network);
        copyValues(model, ParamMap.empty());
        model.setParent(this);
        return model;
    }

    /** Returns the number of classes that is asked for, or 0 for what the labels say. */
    private int numClasses(String[] names) {
        int wanted = getNumClasses();
        if (names.length > 0 && wanted > 0 && names.length != wanted) {
            throw new IllegalArgumentException(
                    ("There are %d names of classes and %d classes: leave out setNumClasses, so"
                                    + " that there are as many classes as names, or name all"
                                    + " (setClassNames)")
                            .formatted(names.length, wanted));
        }
        return wanted > 0 ? wanted : names.length;
    }

    /** Returns how to train, or throws what cannot be built, which no executor has to tell then. */
    private TrainingPlan plan(Columns columns, RowCheck.Result known) {
        NetworkPlan network =
                new NetworkPlan(
                        known.width(),
                        columns.kind() == Columns.Kind.INTEGERS,
                        known.classes(),
                        Arrays.stream(getHiddenLayers()).boxed().toList(),
                        getBody(),
                        List.of(getBodyArguments()),
                        getHeadBias(),
                        getHeadPrecision(),
                        (float) getHeadSampleShare(),
                        getSeed(),
                        getHeadMemory(),
                        (float) getHeadSigma(),
                        Arrays.stream(getHeadMargin()).boxed().toList());
        if (network.ids() && network.body().isEmpty()) {
            throw new IllegalArgumentException(
                    "The features are integers: set a body that looks them up (setBody), or make"
                            + " them float");
        }
        TrainingPlan plan =
                new TrainingPlan(
                        network,
                        known.rows(),
                        getBatchSize(),
                        getEpochs(),
                        getOptimizer(),
                        (float) getLearningRate(),
                        (float) getLabelSmoothing(),
                        getSeed(),
                        known.checksum(),
                        getCheckpointFolder(),
                        getCheckpointInterval());
        plan.newOptimizer();
        network.newNetwork();
        return plan;
    }

    private String[] names(StructField labels) {
        String[] given = getClassNames();
        if (given.length > 0) {
            return given;
        }
        Attribute label = Attribute.fromStructField(labels);
        if (label instanceof NominalAttribute) {
            Option<String[]> values = ((NominalAttribute) label).values();
            return values.isDefined() ? values.get() : new String[0];
        }
        return new String[0];
    }
}
