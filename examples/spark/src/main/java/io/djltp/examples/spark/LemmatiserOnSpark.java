package io.djltp.examples.spark;

import io.djltp.examples.lemma.Language;
import io.djltp.examples.lemma.LemmaCorpus;
import io.djltp.spark.ml.ParallelClassificationModel;
import io.djltp.spark.ml.ParallelClassifier;

import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.jspecify.annotations.Nullable;

import picocli.CommandLine;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;

/**
 * Trains the German lemmatiser on some words of the dictionary, with all of its lemmas as classes,
 * from a DataFrame, and says the lemmas that it finds for a few of them. An application for {@code
 * spark-submit}.
 */
@Command(
        name = "lemmatiser-on-spark",
        mixinStandardHelpOptions = true,
        showDefaultValues = true,
        description = "Trains the German lemmatiser from a DataFrame.")
public final class LemmatiserOnSpark implements Callable<Integer> {

    private static final int TABLE = 1 << 17; // rows of the embedding table
    private static final int SHOWN = 5; // words

    @Option(names = "--words", defaultValue = "16384", description = "how many words to train on")
    private int words;

    @Option(names = "--ranks", defaultValue = "2", description = "executors that train together")
    private int ranks;

    @Option(names = "--batch", defaultValue = "512", description = "words of a step")
    private int batch;

    @Option(names = "--dim", defaultValue = "64", description = "features of a word")
    private int dim;

    @Option(names = "--epochs", defaultValue = "3", description = "passes over the words")
    private int epochs;

    @Option(
            names = "--checkpoints",
            defaultValue = "",
            description = "a folder for checkpoints that all executors see: go on from there")
    private String checkpoints;

    @Option(names = "--interval", defaultValue = "100", description = "steps to a checkpoint")
    private int interval;

    @Option(
            names = "--attempts",
            defaultValue = "1",
            description = "how often the training may be started when executors are lost")
    private int attempts;

    @Option(names = "--out", description = "where the model is saved, by Spark ML's conventions")
    private @Nullable String out;

    private LemmatiserOnSpark() {}

    /**
     * Runs the application.
     *
     * @param args the options
     */
    public static void main(String[] args) {
        int status = new CommandLine(new LemmatiserOnSpark()).execute(args);
        if (status != 0) {
            throw new IllegalStateException("The training has failed"); // for Spark's master
        }
    }

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        try (SparkSession spark = SparkSession.builder().appName("lemmatiser").getOrCreate()) {
            LemmaCorpus corpus = LemmaCorpus.read(List.of(Language.DE));
            Dataset<Row> rows = rows(spark, corpus).cache();
            ParallelClassificationModel model = classifier(corpus).fit(rows);
            System.out.printf("%d classes, %d ranks%n", model.getNumClasses(), ranks);
            double[] losses = model.getTrainingLosses();
            for (int i = 0; i < losses.length; i++) {
                System.out.printf("epoch %d: loss %.6f%n", i + 1, losses[i]);
            }
            model.setTopK(1)
                    .transform(rows.limit(SHOWN))
                    .select("word", "topClasses")
                    .collectAsList()
                    .forEach(System.out::println);
            if (out != null) {
                model.write().overwrite().save(out);
            }
        }
        return 0;
    }

    private Dataset<Row> rows(SparkSession spark, LemmaCorpus corpus) {
        List<Row> rows = new ArrayList<>(words);
        int stride = Math.max(1, corpus.size() / words);
        for (int i = 0; i < words; i++) {
            rows.add(RowFactory.create(corpus.form(i * stride), corpus.classOf(i * stride)));
        }
        StructType schema =
                new StructType()
                        .add("word", DataTypes.StringType)
                        .add("lemma", DataTypes.IntegerType);
        JavaSparkContext context = new JavaSparkContext(spark.sparkContext());
        return spark.createDataFrame(context.parallelize(rows, 2 * ranks), schema)
                .withColumn(
                        "ngrams",
                        functions
                                .udf(
                                        new NGrams(TABLE),
                                        DataTypes.createArrayType(DataTypes.IntegerType, false))
                                .apply(functions.col("word")));
    }

    private ParallelClassifier classifier(LemmaCorpus corpus) {
        String[] lemmas = new String[corpus.classes()];
        for (int i = 0; i < lemmas.length; i++) {
            lemmas[i] = corpus.lemma(i);
        }
        ParallelClassifier classifier =
                new ParallelClassifier()
                        .setFeaturesCol("ngrams")
                        .setLabelCol("lemma")
                        .setClassNames(lemmas)
                        .setBody(LemmaBody.class.getName())
                        .setBodyArguments("rows=" + TABLE, "dim=" + dim)
                        .setHeadSigma(0.01f)
                        .setRanks(ranks)
                        .setMaxAttempts(attempts)
                        .setBatchSize(batch)
                        .setEpochs(epochs)
                        .setLearningRate(0.01);
        return checkpoints.isEmpty()
                ? classifier
                : classifier.setCheckpointFolder(checkpoints).setCheckpointInterval(interval);
    }
}
