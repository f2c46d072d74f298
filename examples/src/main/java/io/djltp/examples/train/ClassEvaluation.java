package io.djltp.examples.train;

import ai.djl.inference.Predictor;
import ai.djl.modality.Classifications;
import ai.djl.modality.Classifications.Classification;
import ai.djl.translate.TranslateException;

import io.djltp.classes.ClassData;
import io.djltp.classes.ClassData.Row;
import io.djltp.classes.ClassModel;
import io.djltp.classes.ClassModel.Objective;
import io.djltp.classes.TextFeatures;
import io.djltp.examples.BadInputException;

import java.io.IOException;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Stream;

/**
 * How well a trained classifier knows the labels of some rows. Rows without labels do not count.
 */
public final class ClassEvaluation {

    private static final int BATCH = 256;
    private static final int MOST = 100; // classes of a row that are above the threshold
    private static final int[] CUTS = {1, 3, 5};
    private static final int LAST = 5;

    private final ClassModel model;
    private final float[] inversePropensities;
    private final double[] precision = new double[LAST]; // of each cut, summed over rows
    private final double[] gain = new double[LAST];
    private final double[] found = new double[LAST]; // inverse propensities
    private final double[] findable = new double[LAST];
    private final long[] right; // of each class, labels that are predicted
    private final long[] predicted;
    private final long[] labels;
    private double recall;
    private long rows;
    private long without;

    private ClassEvaluation(ClassModel model) {
        this.model = model;
        int classes = model.getClasses().size();
        inversePropensities = model.getInversePropensities();
        right = new long[classes];
        predicted = new long[classes];
        labels = new long[classes];
    }

    /**
     * Sets the classes and features of data to those that a model knows.
     *
     * @param builder the builder of the data
     * @param model the model
     */
    public static void asTrained(ClassData.Builder builder, ClassModel model) {
        builder.optClasses(model.getClasses()).optManyLabels(true);
        if (model.getFeatures() == ClassData.Features.SPARSE) {
            builder.optFeatureCount(model.getInputs() - 1);
        }
        TextFeatures text = model.getTextFeatures();
        if (text != null) {
            builder.optTextFeatures(text);
        }
    }

    /**
     * Checks that a model can be judged by data.
     *
     * @param option the option that names the data
     * @param data the data, read as {@link #asTrained} says
     * @param model the model
     */
    public static void check(String option, ClassData data, ClassModel model) {
        if (data.getFeatures() != model.getFeatures()) {
            throw new BadInputException(
                    "%s has %s features, and the classifier has %s ones",
                    option, data.getFeatures(), model.getFeatures());
        }
        if (data.getFeatures() == ClassData.Features.DENSE
                && data.getFeatureCount() != model.getInputs()) {
            throw new BadInputException(
                    "%s has vectors of %d features, and the classifier takes %d",
                    option, data.getFeatureCount(), model.getInputs());
        }
        if (Arrays.stream(data.getClassCounts()).sum() == 0) {
            throw new BadInputException(
                    "%s has no label that the classifier knows: %,d labels are unknown",
                    option, data.getUnknownLabels());
        }
    }

    /**
     * Judges a model.
     *
     * @param model the model
     * @param data rows with labels, read as {@link #asTrained} says
     * @return the figures by name
     * @throws IOException if the data cannot be read
     */
    public static Map<String, Object> evaluate(ClassModel model, ClassData data)
            throws IOException {
        ClassEvaluation evaluation = new ClassEvaluation(model);
        int most = Math.min(MOST, model.getClasses().size());
        try (Stream<Row> all = data.stream();
                Predictor<Row, Classifications> predictor = model.newPredictor(Row.class, most)) {
            List<Row> batch = new ArrayList<>();
            for (Iterator<Row> each = all.iterator(); each.hasNext(); ) {
                batch.add(each.next());
                if (batch.size() == BATCH || !each.hasNext()) {
                    List<Classifications> best = predictor.batchPredict(batch);
                    for (int i = 0; i < batch.size(); i++) {
                        evaluation.add(batch.get(i).classes(), best.get(i).items());
                    }
                    batch.clear();
                }
            }
        } catch (TranslateException e) {
            throw new IllegalStateException("The rows cannot be predicted: " + e.getMessage(), e);
        }
        return evaluation.figures(data);
    }

    private void add(int[] own, List<Classification> best) {
        if (own.length == 0) {
            without++;
            return;
        }
        rows++;
        int[] ranking =
                best.stream()
                        .mapToInt(it -> model.getClasses().indexOf(it.getClassName()))
                        .toArray();
        double[] chances =
                Arrays.stream(own).mapToDouble(it -> -inversePropensities[it]).sorted().toArray();
        double hits = 0;
        double gained = 0;
        double ideal = 0;
        double weight = 0;
        double most = 0;
        for (int i = 0; i < LAST; i++) {
            double discount = Math.log(2) / Math.log(i + 2);
            if (i < own.length) {
                ideal += discount;
                most -= chances[i];
            }
            if (i < ranking.length && Arrays.binarySearch(own, ranking[i]) >= 0) {
                hits++;
                gained += discount;
                weight += inversePropensities[ranking[i]];
            }
            precision[i] += hits / (i + 1);
            gain[i] += gained / ideal;
            found[i] += weight;
            findable[i] += most;
        }
        recall += hits / own.length;
        for (int each : own) {
            labels[each]++;
        }
        for (int i = 0; i < count(best); i++) {
            predicted[ranking[i]]++;
            right[ranking[i]] += Arrays.binarySearch(own, ranking[i]) >= 0 ? 1 : 0;
        }
    }

    /** Returns how many of the best classes a row is said to have. */
    private int count(List<Classification> best) {
        if (model.getObjective() == Objective.SOFTMAX) {
            return Math.min(best.size(), model.getUsualLabels());
        }
        double least = model.getObjective() == Objective.ONE_VS_ALL ? 0.5 : 0;
        return (int) best.stream().filter(it -> it.getProbability() > least).count();
    }

    private Map<String, Object> figures(ClassData data) {
        Map<String, Object> figures = new LinkedHashMap<>();
        figures.put("rows", rows);
        figures.put("rows_without_labels", without);
        figures.put("unknown_labels", data.getUnknownLabels());
        for (int k : CUTS) {
            figures.put("p" + k, precision[k - 1] / rows);
        }
        figures.put("r" + LAST, recall / rows);
        for (int k : CUTS) {
            figures.put("ndcg" + k, gain[k - 1] / rows);
        }
        for (int k : CUTS) {
            figures.put("psp" + k, found[k - 1] / findable[k - 1]);
        }
        long hits = Arrays.stream(right).sum();
        figures.put(
                "micro_f1", f1(hits, Arrays.stream(predicted).sum(), Arrays.stream(labels).sum()));
        double sum = 0;
        int classes = 0;
        for (int i = 0; i < labels.length; i++) {
            if (labels[i] + predicted[i] > 0) {
                sum += f1(right[i], predicted[i], labels[i]);
                classes++;
            }
        }
        figures.put("macro_f1", sum / classes);
        return figures;
    }

    private static double f1(long right, long predicted, long labels) {
        return 2.0 * right / (predicted + labels);
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
                "%,d rows with labels, %,d without, %,d labels that were not trained%n",
                figures.get("rows"),
                figures.get("rows_without_labels"),
                figures.get("unknown_labels"));
        StringBuilder names = new StringBuilder();
        StringBuilder values = new StringBuilder();
        figures.forEach(
                (name, value) -> {
                    if (value instanceof Double) {
                        int width = Math.max(7, name.length() + 1);
                        names.append(String.format(Locale.ROOT, "%" + width + "s", name));
                        values.append(String.format(Locale.ROOT, "%" + width + ".4f", value));
                    }
                });
        out.println(names);
        out.println(values);
    }
}
