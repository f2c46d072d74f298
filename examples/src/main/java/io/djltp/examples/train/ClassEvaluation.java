package io.djltp.examples.train;

import ai.djl.inference.Predictor;
import ai.djl.modality.Classifications;
import ai.djl.modality.Classifications.Classification;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.translate.TranslateException;

import io.djltp.classes.ClassData;
import io.djltp.classes.ClassData.Features;
import io.djltp.classes.ClassData.Row;
import io.djltp.classes.ClassModel;
import io.djltp.classes.ClassModel.Objective;
import io.djltp.classes.ClassNames;
import io.djltp.examples.BadInputException;
import io.djltp.examples.Tp;
import io.djltp.head.TopClasses;
import io.djltp.internal.torch.Autograd;
import io.djltp.loss.VocabParallelRanking;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.function.Function;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import java.util.stream.Stream;

/**
 * How well a trained classifier knows the labels of some rows. Rows without labels do not count.
 */
public final class ClassEvaluation {

    private static final int BATCH = 256;
    private static final int MOST = 100; // classes of a row that are above the threshold
    private static final int[] CUTS = {1, 3, 5};
    private static final int LAST = 5;
    private static final String ALL = "all";

    private final ClassModel model;
    private final ClassData data;
    private final Map<String, VocabParallelRanking> metrics = new LinkedHashMap<>();
    private final int needed; // classes of a row
    private long rows;

    private ClassEvaluation(ClassModel model, ClassData data) {
        this.model = model;
        this.data = data;
        for (int k : CUTS) {
            metrics.put("p" + k, VocabParallelRanking.precision(k));
        }
        metrics.put("r" + LAST, VocabParallelRanking.recall(LAST));
        for (int k : CUTS) {
            metrics.put("ndcg" + k, VocabParallelRanking.ndcg(k));
        }
        float[] inverse = model.getInversePropensities();
        for (int k : CUTS) {
            metrics.put("psp" + k, VocabParallelRanking.propensityPrecision(k, inverse));
        }
        // a row has its best classes after softmax, those that are above the middle otherwise
        boolean softmax = model.getObjective() == Objective.SOFTMAX;
        int most = softmax ? model.getUsualLabels() : MOST;
        needed = Math.max(LAST, most);
        float least = model.getObjective() == Objective.ONE_VS_ALL ? 0.5f : 0;
        float threshold = softmax ? Float.NEGATIVE_INFINITY : least;
        metrics.put("micro_f1", VocabParallelRanking.microF1(most, threshold));
        metrics.put("macro_f1", VocabParallelRanking.macroF1(most, threshold));
        metrics.values().forEach(metric -> metric.addAccumulator(ALL));
    }

    /**
     * Reads data with the classes and features that a model knows.
     *
     * @param own how to read it
     * @param source the files
     * @param model the model
     * @return the data
     */
    public static ClassData read(DataOptions own, DataOptions.Source source, ClassModel model) {
        boolean sparse = model.getFeatures() == Features.SPARSE;
        int count = model.getInputs() - (sparse ? 1 : 0);
        return read(own, source, model.getClasses(), model.getFeatures(), count, null);
    }

    /**
     * Reads data with classes and features, of which the number is not asked for of texts.
     *
     * @param texts what makes ids of texts, or {@code null} for the usual features
     */
    static ClassData read(
            DataOptions own,
            DataOptions.Source source,
            ClassNames classes,
            Features features,
            int count,
            @Nullable Function<? super String, int[]> texts) {
        ClassData data =
                own.read(
                        source,
                        builder -> {
                            builder.optClasses(classes).optManyLabels(true);
                            if (texts != null) {
                                builder.optTextFeatures(texts);
                            }
                            if (features == Features.SPARSE) {
                                builder.optFeatureCount(count);
                            }
                        });
        if (data.getFeatures() != features) {
            throw new BadInputException(
                    "%s has %s features, and the classifier has %s ones",
                    source.option(), data.getFeatures(), features);
        }
        if (features == Features.DENSE && data.getFeatureCount() != count) {
            throw new BadInputException(
                    "%s has vectors of %d features, and the classifier takes %d",
                    source.option(), data.getFeatureCount(), count);
        }
        if (Arrays.stream(data.getClassCounts()).sum() == 0) {
            throw new BadInputException(
                    "%s has no label that the classifier knows: %,d labels are unknown",
                    source.option(), data.getUnknownLabels());
        }
        return data;
    }

    /**
     * Judges a model.
     *
     * @param model the model
     * @param data rows with labels, of which the classes are those of the model
     * @return the figures by name
     * @throws IOException if the data cannot be read
     */
    public static Map<String, Object> evaluate(ClassModel model, ClassData data)
            throws IOException {
        ClassEvaluation evaluation = new ClassEvaluation(model, data);
        long filtered =
                LongStream.range(0, data.size())
                        .map(row -> data.getFilteredClasses(row).length)
                        .max()
                        .orElse(0);
        int most = (int) Math.min(evaluation.needed + filtered, model.getClasses().size());
        // each thread has batches of its own: no operation waits for the slowest thread
        int cores = Runtime.getRuntime().availableProcessors();
        List<Predictor<Row, Classifications>> predictors =
                Stream.generate(() -> model.newPredictor(Row.class, most)).limit(cores).toList();
        try (Stream<Row> all = data.stream()) {
            for (Iterator<Row> rows = all.iterator(); rows.hasNext(); ) {
                List<List<Row>> batches = new ArrayList<>();
                while (batches.size() < cores && rows.hasNext()) {
                    batches.add(next(rows));
                }
                List<List<Classifications>> best =
                        IntStream.range(0, batches.size())
                                .parallel()
                                .mapToObj(i -> predict(predictors.get(i), batches.get(i)))
                                .toList();
                for (int i = 0; i < batches.size(); i++) {
                    evaluation.add(batches.get(i), best.get(i), most);
                }
            }
        } finally {
            predictors.forEach(Predictor::close);
        }
        return evaluation.figures();
    }

    private static List<Row> next(Iterator<Row> rows) {
        List<Row> batch = new ArrayList<>();
        while (batch.size() < BATCH && rows.hasNext()) {
            batch.add(rows.next());
        }
        return batch;
    }

    private static List<Classifications> predict(
            Predictor<Row, Classifications> predictor, List<Row> batch) {
        int threads = Autograd.getThreads(); // of this thread of the common pool
        Autograd.setThreads(1);
        try {
            return predictor.batchPredict(batch);
        } catch (TranslateException e) {
            throw new IllegalStateException("The rows cannot be predicted: " + e.getMessage(), e);
        } finally {
            Autograd.setThreads(threads);
        }
    }

    private void add(List<Row> batch, List<Classifications> best, int k) {
        int size = batch.size();
        int width = batch.stream().mapToInt(row -> row.classes().length).max().orElse(0) + 1;
        long[] labels = new long[size * width];
        Arrays.fill(labels, -1);
        long[] classes = new long[size * k];
        float[] scores = new float[size * k];
        Arrays.fill(scores, Float.NEGATIVE_INFINITY); // of no class
        for (int i = 0; i < size; i++) {
            int[] own = batch.get(i).classes();
            rows += own.length > 0 ? 1 : 0;
            for (int j = 0; j < own.length; j++) {
                labels[i * width + j] = own[j];
            }
            int[] filtered = data.getFilteredClasses(batch.get(i).number());
            int at = i * k;
            for (Classification each : best.get(i).<Classification>items()) {
                int number = model.getClasses().indexOf(each.getClassName());
                if (Arrays.binarySearch(filtered, number) < 0) {
                    classes[at] = number;
                    scores[at++] = (float) each.getProbability();
                }
            }
        }
        try (NDManager manager = NDManager.newBaseManager()) {
            NDList all = new NDList(manager.create(labels, new Shape(size, width)));
            NDArray found = manager.create(classes, new Shape(size, k));
            NDArray values = manager.create(scores, new Shape(size, k));
            TopClasses top = new TopClasses(found, values, null);
            metrics.values().forEach(metric -> metric.updateAccumulator(ALL, all, top));
        }
    }

    private Map<String, Object> figures() {
        Map<String, Object> figures = new LinkedHashMap<>();
        figures.put("rows", rows);
        figures.put("rows_without_labels", data.size() - rows);
        figures.put("unknown_labels", data.getUnknownLabels());
        metrics.forEach((name, metric) -> figures.put(name, metric.getAccumulator(ALL)));
        return figures;
    }

    /**
     * Prints the figures.
     *
     * @param figures the figures
     * @param out where to print
     */
    public static void print(Map<String, Object> figures, PrintStream out) {
        out.printf(
                Locale.ROOT,
                "%s with labels, %,d without, %s not trained%n",
                count(figures.get("rows"), "row"),
                figures.get("rows_without_labels"),
                count(figures.get("unknown_labels"), "label"));
        StringBuilder names = new StringBuilder();
        StringBuilder values = new StringBuilder();
        figures.forEach(
                (name, value) -> {
                    if (value instanceof Float) {
                        int width = Math.max(7, name.length() + 1);
                        names.append(String.format(Locale.ROOT, "%" + width + "s", name));
                        values.append(String.format(Locale.ROOT, "%" + width + ".4f", value));
                    }
                });
        out.println(names);
        out.println(values);
    }

    private static String count(@Nullable Object number, String noun) {
        return Tp.count((long) Objects.requireNonNull(number, noun), noun);
    }
}
