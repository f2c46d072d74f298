package io.djltp.spark.ml;

import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.spark.TensorParallelSpark;

import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.ml.Estimator;
import org.apache.spark.ml.attribute.Attribute;
import org.apache.spark.ml.attribute.NominalAttribute;
import org.apache.spark.ml.param.BooleanParam;
import org.apache.spark.ml.param.DoubleArrayParam;
import org.apache.spark.ml.param.DoubleParam;
import org.apache.spark.ml.param.IntArrayParam;
import org.apache.spark.ml.param.IntParam;
import org.apache.spark.ml.param.LongParam;
import org.apache.spark.ml.param.Param;
import org.apache.spark.ml.param.ParamMap;
import org.apache.spark.ml.param.ParamValidators;
import org.apache.spark.ml.param.StringArrayParam;
import org.apache.spark.ml.util.DefaultParamsReader;
import org.apache.spark.ml.util.DefaultParamsWritable;
import org.apache.spark.ml.util.Identifiable;
import org.apache.spark.ml.util.MLReader;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

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
public final class ParallelClassifier extends Estimator<ParallelClassificationModel>
        implements PredictionParams<ParallelClassifier>, DefaultParamsWritable {

    private static final long serialVersionUID = 1L;

    private static final String[] LOSSES = {"softmax", "one-vs-all"};

    /** Unique among stages: Spark names parameters by it. */
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
        Columns.setDefaults(this);
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
        columns(schema);
        return Columns.withPredictions(schema, this);
    }

    /**
     * Trains.
     *
     * @param dataset the rows, which are read twice: cache them if that takes long, or if they
     *     could change
     * @return the trained model
     * @throws IllegalArgumentException if there is no row, a column is missing, or a row is bad: a
     *     label is no class, or a feature is null, infinite or NaN
     * @throws IllegalStateException if there are fewer slots than tasks, or executors are allocated
     *     dynamically
     * @throws io.djltp.spark.SparkJobException if a task fails, or its executor is lost
     */
    @Override
    public ParallelClassificationModel fit(Dataset<?> dataset) {
        transformSchema(dataset.schema());
        check();
        Columns columns = columns(dataset.schema());
        StructField labels = dataset.schema().apply(columns.label());
        JavaRDD<Row> rows = dataset.toDF().javaRDD();
        String[] names = names(labels);
        if (labels.dataType() instanceof ArrayType array
                && array.elementType().equals(DataTypes.StringType)) {
            names = names.length > 0 ? names : columns.labelNames(rows);
            columns = columns.named(numbers(names));
        }
        int wanted = numClasses(names);
        int ranks = getRanks();
        TensorParallelSpark job =
                TensorParallelSpark.builder()
                        .setRanks(ranks)
                        .optRanksPerTask(getRanksPerTask())
                        .optMaxAttempts(getMaxAttempts())
                        .build();
        int tasks = job.tasks(rows.context());
        network(columns, 1, Integer.MAX_VALUE).newNetwork(); // throws what cannot be built
        KnownRows known = KnownRows.read(rows, columns, wanted);
        if (known.classes() < ranks) {
            throw new IllegalArgumentException(
                    ("%d ranks need %d classes or more, since each has a part of them, and there"
                                    + " are %d: ask for fewer ranks (setRanks)")
                            .formatted(ranks, ranks, known.classes()));
        }
        NetworkPlan network = network(columns, known.width(), known.classes());
        TrainingPlan plan =
                new TrainingPlan(this, network, columns.many(), known.rows(), known.checksum());
        RankTrainer.Trained trained =
                job.run(
                        known.ofRanks(rows, columns, ranks, tasks),
                        (own, part) -> new RankTrainer(own, plan).train(part));
        return model(new SavedNetwork(network, trained.parameters(), names, trained.losses()));
    }

    /** Returns the columns of a DataFrame, whose labels are numbers. */
    private Columns columns(StructType schema) {
        Columns columns = Columns.of(schema, getFeaturesCol(), getLabelCol());
        return getEmbeddingUnits() > 0 ? columns.sparse(getFeaturesCol()) : columns;
    }

    /** Returns the classes by their names. */
    private static Map<String, Integer> numbers(String[] names) {
        Map<String, Integer> numbers = new HashMap<>();
        for (int i = 0; i < names.length; i++) {
            refuse(
                    numbers.put(names[i], i) != null,
                    "The name '%s' is that of two classes: name each once (setClassNames)",
                    names[i]);
        }
        return numbers;
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

    private NetworkPlan network(Columns columns, int width, int classes) {
        boolean ids = columns.kind() == Columns.Kind.INTEGERS;
        refuse(
                ids && getBody().isEmpty(),
                "The features are integers: set a body that looks them up (setBody), or make them"
                        + " float");
        return new NetworkPlan(
                width,
                ids,
                getEmbeddingUnits(),
                classes,
                Arrays.stream(getHiddenLayers()).boxed().toList(),
                getBody(),
                List.of(getBodyArguments()),
                getHeadBias(),
                getHeadPrecision(),
                (float) getHeadSampleShare(),
                getSeed(),
                getHeadMemory(),
                (float) getHeadSigma(),
                Arrays.stream(getHeadMargin()).boxed().toList(),
                isOneVsAll());
    }

    /** Returns the optimizer. */
    Optimizer newOptimizer() {
        Tracker rate = Tracker.fixed((float) getLearningRate());
        return switch (getOptimizer()) {
            case "adam" -> Optimizer.adam().optLearningRateTracker(rate).build();
            case "adagrad" -> Optimizer.adagrad().optLearningRateTracker(rate).build();
            case "adamw" -> Optimizer.adamW().optLearningRateTracker(rate).build();
            default -> Optimizer.sgd().setLearningRateTracker(rate).build();
        };
    }

    private String[] names(StructField labels) {
        String[] given = getClassNames();
        if (given.length > 0 || !(labels.dataType() instanceof NumericType)) {
            return given;
        }
        Attribute label = Attribute.fromStructField(labels);
        return label instanceof NominalAttribute nominal && nominal.values().isDefined()
                ? nominal.values().get()
                : new String[0];
    }

    /** Sets the defaults of all parameters. */
    private void setDefaults() {
        setDefault(labelCol(), "label");
        setDefault(numClasses(), 0);
        setDefault(classNames(), new String[0]);
        setDefault(epochs(), 10);
        setDefault(batchSize(), 256);
        setDefault(learningRate(), 1e-3);
        setDefault(optimizer(), "adam");
        setDefault(loss(), LOSSES[0]);
        setDefault(labelSmoothing(), 0.0);
        setDefault(seed(), 42L);
        setDefault(embeddingUnits(), 0);
        setDefault(hiddenLayers(), new int[0]);
        setDefault(body(), "");
        setDefault(bodyArguments(), new String[0]);
        setDefault(headBias(), true);
        setDefault(headPrecision(), "float32");
        setDefault(headSampleShare(), 1.0);
        setDefault(headMemory(), 0L);
        setDefault(headSigma(), 0.0);
        setDefault(headMargin(), new double[0]);
        setDefault(ranks(), 2);
        setDefault(ranksPerTask(), 0);
        setDefault(checkpointFolder(), "");
        setDefault(checkpointInterval(), 100);
        setDefault(maxAttempts(), 1);
    }

    private <T> ParallelClassifier with(Param<T> param, T value) {
        set(param, value);
        return this;
    }

    private IntParam positive(String name, String doc) {
        return new IntParam(this, name, doc, ParamValidators.gt(0));
    }

    /**
     * Returns the column with the labels: the number of a class, from 0, or an array of the numbers
     * (int, bigint) or the names (string) of several.
     *
     * @return the parameter; default label
     */
    public Param<String> labelCol() {
        return new Param<>(
                this,
                "labelCol",
                "the column with the labels: a class of each row, or an array of them");
    }

    /**
     * Returns the value of {@link #labelCol}.
     *
     * @return the value
     */
    public String getLabelCol() {
        return getOrDefault(labelCol());
    }

    /**
     * Sets the column with the labels: the number of a class, from 0, or an array of the numbers
     * (int, bigint) or the names (string) of several. A row without labels has an empty array. Its
     * softmax has no loss, and that of several labels is the mean. Names that are not those of
     * {@link #setClassNames} throw {@code IllegalArgumentException}; if it was not called, the
     * classes are all names of the column, sorted, for which the rows are read once more.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setLabelCol(String value) {
        return with(labelCol(), value);
    }

    /**
     * Returns the number of classes: 0 for one more than the largest label that there is, or as
     * many as the label column has names.
     *
     * @return the parameter; default 0
     */
    public IntParam numClasses() {
        return new IntParam(
                this,
                "numClasses",
                "the number of classes: 0 for as many as names, or as labels",
                ParamValidators.gtEq(0));
    }

    /**
     * Returns the value of {@link #numClasses}.
     *
     * @return the value
     */
    public int getNumClasses() {
        return (Integer) getOrDefault(numClasses());
    }

    /**
     * Sets the number of classes: 0 for one more than the largest label that there is, or as many
     * as the label column has names.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setNumClasses(int value) {
        return with(numClasses(), value);
    }

    /**
     * Returns the names of the classes: in their order. Without them those that a StringIndexer has
     * left with the label column, or the numbers.
     *
     * @return the parameter; default none
     */
    public StringArrayParam classNames() {
        return new StringArrayParam(this, "classNames", "the names of the classes, in their order");
    }

    /**
     * Returns the value of {@link #classNames}.
     *
     * @return the value
     */
    public String[] getClassNames() {
        return getOrDefault(classNames());
    }

    /**
     * Sets the names of the classes: in their order. Without them those that a StringIndexer has
     * left with the label column, or the numbers.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setClassNames(String... value) {
        return with(classNames(), value);
    }

    /**
     * Returns the passes over the rows: 1 or more.
     *
     * @return the parameter; default 10
     */
    public IntParam epochs() {
        return positive("epochs", "the passes over the rows");
    }

    /**
     * Returns the value of {@link #epochs}.
     *
     * @return the value
     */
    public int getEpochs() {
        return (Integer) getOrDefault(epochs());
    }

    /**
     * Sets the passes over the rows: 1 or more.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setEpochs(int value) {
        return with(epochs(), value);
    }

    /**
     * Returns the rows of a step: over all ranks, of which it is a multiple.
     *
     * @return the parameter; default 256
     */
    public IntParam batchSize() {
        return new IntParam(
                this, "batchSize", "the rows of a step, over all ranks: a multiple of them");
    }

    /**
     * Returns the value of {@link #batchSize}.
     *
     * @return the value
     */
    public int getBatchSize() {
        return (Integer) getOrDefault(batchSize());
    }

    /**
     * Sets the rows of a step: over all ranks, of which it is a multiple.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setBatchSize(int value) {
        return with(batchSize(), value);
    }

    /**
     * Returns the learning rate: above 0.
     *
     * @return the parameter; default 1e-3
     */
    public DoubleParam learningRate() {
        return new DoubleParam(this, "learningRate", "the learning rate", ParamValidators.gt(0));
    }

    /**
     * Returns the value of {@link #learningRate}.
     *
     * @return the value
     */
    public double getLearningRate() {
        return (Double) getOrDefault(learningRate());
    }

    /**
     * Sets the learning rate: above 0.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setLearningRate(double value) {
        return with(learningRate(), value);
    }

    /**
     * Returns the loss: softmax or one-vs-all.
     *
     * @return the parameter; default softmax
     */
    public Param<String> loss() {
        return new Param<>(
                this, "loss", "the loss: softmax or one-vs-all", ParamValidators.inArray(LOSSES));
    }

    /**
     * Returns the value of {@link #loss}.
     *
     * @return the value
     */
    public String getLoss() {
        return getOrDefault(loss());
    }

    /**
     * Sets the loss: softmax, where the probabilities of all classes sum up to 1, or one-vs-all,
     * the binary cross entropy of each class, where each has a probability of its own. The latter
     * is for rows with several labels or none; the loss of a row is a sum over all classes.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setLoss(String value) {
        return with(loss(), value);
    }

    private boolean isOneVsAll() {
        return getLoss().equals(LOSSES[1]);
    }

    /**
     * Returns the optimizer: adam, adamw or sgd.
     *
     * @return the parameter; default adam
     */
    public Param<String> optimizer() {
        List<String> all = List.of("adam", "adamw", "adagrad", "sgd");
        return new Param<>(
                this,
                "optimizer",
                "the optimizer: adam, adamw, adagrad or sgd",
                ParamValidators.inArray(all));
    }

    /**
     * Returns the value of {@link #optimizer}.
     *
     * @return the value
     */
    public String getOptimizer() {
        return getOrDefault(optimizer());
    }

    /**
     * Sets the optimizer: adam, adamw, adagrad or sgd. With adagrad and sgd a step reads and writes
     * only the rows of the table that the features of the batch use, see {@link
     * #setEmbeddingUnits}.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setOptimizer(String value) {
        return with(optimizer(), value);
    }

    /**
     * Returns the smoothed part of the labels: from 0 to below 1.
     *
     * @return the parameter; default 0.0
     */
    public DoubleParam labelSmoothing() {
        return new DoubleParam(
                this,
                "labelSmoothing",
                "the smoothed part of the labels: from 0 to below 1",
                ParamValidators.inRange(0, 1, true, false));
    }

    /**
     * Returns the value of {@link #labelSmoothing}.
     *
     * @return the value
     */
    public double getLabelSmoothing() {
        return (Double) getOrDefault(labelSmoothing());
    }

    /**
     * Sets the smoothed part of the labels: from 0 to below 1.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setLabelSmoothing(double value) {
        return with(labelSmoothing(), value);
    }

    /**
     * Returns the seed: of the first weights, of the order of rows and of the classes that are
     * drawn.
     *
     * @return the parameter; default 42
     */
    public LongParam seed() {
        return new LongParam(
                this, "seed", "the seed of first weights, order of rows and drawn classes");
    }

    /**
     * Returns the value of {@link #seed}.
     *
     * @return the value
     */
    public long getSeed() {
        return (Long) getOrDefault(seed());
    }

    /**
     * Sets the seed: of the first weights, of the order of rows and of the classes that are drawn.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setSeed(long value) {
        return with(seed(), value);
    }

    /**
     * Returns the features of each row of a table, which sparse vectors are looked up in: 0 for no
     * table, and vectors that are dense.
     *
     * @return the parameter; default 0
     */
    public IntParam embeddingUnits() {
        return new IntParam(
                this,
                "embeddingUnits",
                "the features of each row of the table for sparse vectors, or 0",
                ParamValidators.gtEq(0));
    }

    /**
     * Returns the value of {@link #embeddingUnits}.
     *
     * @return the value
     */
    public int getEmbeddingUnits() {
        return (Integer) getOrDefault(embeddingUnits());
    }

    /**
     * Sets the features of each row of a table, which sparse vectors are looked up in: 1 or more,
     * or 0 for no table. The table has a row for each place of the vector, and an {@link
     * io.djltp.nn.EmbeddingBag} below the body and the hidden layers sums the rows of the values
     * that are not zero, multiplied by them. Only these values are shuffled, kept and fed. Without
     * a table vectors become dense.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setEmbeddingUnits(int value) {
        return with(embeddingUnits(), value);
    }

    /**
     * Returns the units of hidden layers: with a ReLU behind each.
     *
     * @return the parameter; default none
     */
    public IntArrayParam hiddenLayers() {
        return new IntArrayParam(
                this, "hiddenLayers", "the units of hidden layers, each with a ReLU");
    }

    /**
     * Returns the value of {@link #hiddenLayers}.
     *
     * @return the value
     */
    public int[] getHiddenLayers() {
        return getOrDefault(hiddenLayers());
    }

    /**
     * Sets the units of hidden layers: with a ReLU behind each.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setHiddenLayers(int... value) {
        return with(hiddenLayers(), value);
    }

    /**
     * Returns the class of a BodyFactory: which makes the blocks below the hidden layers.
     *
     * @return the parameter; default none
     */
    public Param<String> body() {
        return new Param<>(this, "body", "the class of a BodyFactory, for the blocks below");
    }

    /**
     * Returns the value of {@link #body}.
     *
     * @return the value
     */
    public String getBody() {
        return getOrDefault(body());
    }

    /**
     * Sets the class of a BodyFactory: which makes the blocks below the hidden layers.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setBody(String value) {
        return with(body(), value);
    }

    /**
     * Returns the arguments of the body: each name=value.
     *
     * @return the parameter; default none
     */
    public StringArrayParam bodyArguments() {
        return new StringArrayParam(
                this, "bodyArguments", "the arguments of the body: each name=value");
    }

    /**
     * Returns the value of {@link #bodyArguments}.
     *
     * @return the value
     */
    public String[] getBodyArguments() {
        return getOrDefault(bodyArguments());
    }

    /**
     * Sets the arguments of the body: each name=value.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setBodyArguments(String... value) {
        return with(bodyArguments(), value);
    }

    /**
     * Returns whether the head has a bias: not with a margin.
     *
     * @return the parameter; default true
     */
    public BooleanParam headBias() {
        return new BooleanParam(this, "headBias", "whether the head has a bias: not with a margin");
    }

    /**
     * Returns the value of {@link #headBias}.
     *
     * @return the value
     */
    public boolean getHeadBias() {
        return (Boolean) getOrDefault(headBias());
    }

    /**
     * Sets whether the head has a bias: not with a margin.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setHeadBias(boolean value) {
        return with(headBias(), value);
    }

    /**
     * Returns the arithmetic of the head: float32 or bfloat16.
     *
     * @return the parameter; default float32
     */
    public Param<String> headPrecision() {
        return new Param<>(
                this, "headPrecision", "the arithmetic of the head: float32 or bfloat16");
    }

    /**
     * Returns the value of {@link #headPrecision}.
     *
     * @return the value
     */
    public String getHeadPrecision() {
        return getOrDefault(headPrecision());
    }

    /**
     * Sets the arithmetic of the head: float32 or bfloat16.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setHeadPrecision(String value) {
        return with(headPrecision(), value);
    }

    /**
     * Returns the share of the classes that a step computes with: above 0 and up to 1, all.
     *
     * @return the parameter; default 1.0
     */
    public DoubleParam headSampleShare() {
        return new DoubleParam(
                this, "headSampleShare", "the share of the classes of a step: up to 1");
    }

    /**
     * Returns the value of {@link #headSampleShare}.
     *
     * @return the value
     */
    public double getHeadSampleShare() {
        return (Double) getOrDefault(headSampleShare());
    }

    /**
     * Sets the share of the classes that a step computes with: above 0 and up to 1, all.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setHeadSampleShare(double value) {
        return with(headSampleShare(), value);
    }

    /**
     * Returns the bytes for logits on each rank: 0 for the default of ClassificationHead.
     *
     * @return the parameter; default 0
     */
    public LongParam headMemory() {
        return new LongParam(
                this, "headMemory", "the bytes for logits on each rank: 0 for the default");
    }

    /**
     * Returns the value of {@link #headMemory}.
     *
     * @return the value
     */
    public long getHeadMemory() {
        return (Long) getOrDefault(headMemory());
    }

    /**
     * Sets the bytes for logits on each rank: 0 for the default of ClassificationHead.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setHeadMemory(long value) {
        return with(headMemory(), value);
    }

    /**
     * Returns the standard deviation of the first weights of the head: 0 for the default of DJL.
     *
     * @return the parameter; default 0.0
     */
    public DoubleParam headSigma() {
        return new DoubleParam(
                this, "headSigma", "the deviation of the head's first weights: 0 for DJL's");
    }

    /**
     * Returns the value of {@link #headSigma}.
     *
     * @return the value
     */
    public double getHeadSigma() {
        return (Double) getOrDefault(headSigma());
    }

    /**
     * Sets the standard deviation of the first weights of the head: 0 for the default of DJL.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setHeadSigma(double value) {
        return with(headSigma(), value);
    }

    /**
     * Returns the margin of the head: scale, m1, m2 and m3 as io.djltp.head.Margin has them, or
     * nothing.
     *
     * @return the parameter; default none
     */
    public DoubleArrayParam headMargin() {
        return new DoubleArrayParam(
                this, "headMargin", "scale, m1, m2 and m3 of a margin, or nothing");
    }

    /**
     * Returns the value of {@link #headMargin}.
     *
     * @return the value
     */
    public double[] getHeadMargin() {
        return getOrDefault(headMargin());
    }

    /**
     * Sets the margin of the head: scale, m1, m2 and m3 as io.djltp.head.Margin has them, or
     * nothing.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setHeadMargin(double... value) {
        return with(headMargin(), value);
    }

    /**
     * Returns the number of ranks: over which the classes are cut.
     *
     * @return the parameter; default 2
     */
    public IntParam ranks() {
        return positive("ranks", "the number of ranks");
    }

    /**
     * Returns the value of {@link #ranks}.
     *
     * @return the value
     */
    public int getRanks() {
        return (Integer) getOrDefault(ranks());
    }

    /**
     * Sets the number of ranks: over which the classes are cut.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setRanks(int value) {
        return with(ranks(), value);
    }

    /**
     * Returns the ranks of a task: 0 for one; on the master local, for all.
     *
     * @return the parameter; default 0
     */
    public IntParam ranksPerTask() {
        return new IntParam(
                this,
                "ranksPerTask",
                "the ranks of a task: 0 for one; on the master local, for all");
    }

    /**
     * Returns the value of {@link #ranksPerTask}.
     *
     * @return the value
     */
    public int getRanksPerTask() {
        return (Integer) getOrDefault(ranksPerTask());
    }

    /**
     * Sets the ranks of a task: 0 for one; on the master local, for all.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setRanksPerTask(int value) {
        return with(ranksPerTask(), value);
    }

    /**
     * Returns the folder for checkpoints, which all executors see: {@code fit} goes on from the
     * newest one that is there.
     *
     * @return the parameter; default none
     */
    public Param<String> checkpointFolder() {
        return new Param<>(
                this, "checkpointFolder", "the folder for checkpoints, which all executors see");
    }

    /**
     * Returns the value of {@link #checkpointFolder}.
     *
     * @return the value
     */
    public String getCheckpointFolder() {
        return getOrDefault(checkpointFolder());
    }

    /**
     * Sets the folder for checkpoints: a path that all executors see, as on NFS. The training goes
     * on from the newest checkpoint that is there. {@code fit} throws SparkJobException if that has
     * other settings or rows.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setCheckpointFolder(String value) {
        return with(checkpointFolder(), value);
    }

    /**
     * Returns after how many steps a checkpoint is taken.
     *
     * @return the parameter; default 100
     */
    public IntParam checkpointInterval() {
        return positive("checkpointInterval", "the steps between checkpoints");
    }

    /**
     * Returns the value of {@link #checkpointInterval}.
     *
     * @return the value
     */
    public int getCheckpointInterval() {
        return (Integer) getOrDefault(checkpointInterval());
    }

    /**
     * Sets after how many steps a checkpoint is taken: 1 or more.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setCheckpointInterval(int value) {
        return with(checkpointInterval(), value);
    }

    /**
     * Returns how often the training may be started, the first time included, when executors are
     * lost.
     *
     * @return the parameter; default 1
     */
    public IntParam maxAttempts() {
        return positive("maxAttempts", "how often the training may be started");
    }

    /**
     * Returns the value of {@link #maxAttempts}.
     *
     * @return the value
     */
    public int getMaxAttempts() {
        return (Integer) getOrDefault(maxAttempts());
    }

    /**
     * Sets how often the training may be started, the first time included, when executors are lost:
     * 1 or more. It goes on from the newest checkpoint, and without a folder for them begins anew.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setMaxAttempts(int value) {
        return with(maxAttempts(), value);
    }

    /**
     * Checks the values that depend on each other, and those that Spark has no validator for.
     *
     * @throws IllegalArgumentException if one cannot be trained with
     */
    private void check() {
        TrainingPlan.folder(getCheckpointFolder());
        int batch = getBatchSize();
        int ranks = getRanks();
        refuse(
                batch < ranks || batch % ranks != 0,
                "The batch of %d rows is not shared out to %d ranks alike: set batchSize to a"
                        + " multiple, such as %d",
                batch,
                ranks,
                Math.max(1, batch / ranks) * ranks);
        refuse(
                isOneVsAll() && getLabelSmoothing() > 0,
                "labelSmoothing is %s, and the loss one-vs-all has none: set it to 0, or the loss"
                        + " softmax (setLoss)",
                getLabelSmoothing());
        double[] margin = getHeadMargin();
        refuse(
                margin.length > 0 && isOneVsAll(),
                "headMargin %s needs the loss softmax (setLoss)",
                Arrays.toString(margin));
        refuse(
                margin.length > 0 && getHeadBias(),
                "headMargin %s needs a head without a bias, whose logits are cosines: call"
                        + " setHeadBias(false)",
                Arrays.toString(margin));
        int[] hidden = getHiddenLayers();
        refuse(
                Arrays.stream(hidden).anyMatch(units -> units < 1),
                "hiddenLayers is %s: each layer needs 1 unit or more. setHiddenLayers() without"
                        + " numbers leaves them out",
                Arrays.toString(hidden));
        refuse(
                isSet(checkpointInterval()) && getCheckpointFolder().isEmpty(),
                "checkpointInterval is %d, and there is no folder for checkpoints, so that none"
                        + " would be taken: set one that all executors see (setCheckpointFolder),"
                        + " or leave the interval out",
                getCheckpointInterval());
    }

    private static void refuse(boolean wrong, String message, Object... values) {
        if (wrong) {
            throw new IllegalArgumentException(message.formatted(values));
        }
    }
}
