package io.djltp.conformance;

import static io.djltp.testing.TrainerKind.PLAIN;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Function;

/**
 * Compares what ranks compute of cases with what DJL's own trainer computes. Each element of an
 * array may differ by 1e-5 of the array's largest, with Adam by 1e-4, and in float64 by 1e-9; in
 * float32 by what {@link SweptRounding} says where that is more, which is counted.
 */
final class SweptComparison {

    static final double DIVERGED = 1e7; // a gradient is at most a thousandth of it

    private final Map<String, Double> largest = new TreeMap<>();
    private int diverged;
    private int compared;
    private int rounded;

    /**
     * Trains a case under DJL's trainer and on ranks.
     *
     * @param drawn the case
     * @return what is wrong, or nothing
     */
    List<String> check(SweptCase drawn) {
        return check(drawn, drawn.tree());
    }

    /** Does the same with another network on the ranks. */
    List<String> check(SweptCase drawn, SweptTree onRanks) {
        List<String> wrong = new ArrayList<>();
        wrong.addAll(check(drawn, onRanks, SweptTraining::gradients, true));
        wrong.addAll(check(drawn, onRanks, SweptTraining::steps, false));
        return wrong;
    }

    private List<String> check(
            SweptCase drawn,
            SweptTree onRanks,
            Function<SweptTraining, Map<String, double[]>> run,
            boolean gradients) {
        return check(
                drawn, onRanks, run, gradients, run.apply(SweptTraining.of(drawn, PLAIN)), false);
    }

    /** Compares with what another library has computed in float64. */
    List<String> check(
            SweptCase drawn,
            Map<String, double[]> expectedGradients,
            Map<String, double[]> expectedSteps) {
        SweptTree tree = drawn.tree();
        List<String> wrong =
                new ArrayList<>(
                        check(
                                drawn,
                                tree,
                                SweptTraining::gradients,
                                true,
                                expectedGradients,
                                true));
        wrong.addAll(check(drawn, tree, SweptTraining::steps, false, expectedSteps, true));
        return wrong;
    }

    private List<String> check(
            SweptCase drawn,
            SweptTree onRanks,
            Function<SweptTraining, Map<String, double[]>> run,
            boolean gradients,
            Map<String, double[]> expected,
            boolean exact) {
        double tolerance = drawn.tolerance(gradients);
        if (expected.values().stream().anyMatch(a -> SweptDifference.largest(a) > DIVERGED)) {
            diverged++;
            return List.of();
        }
        Map<String, double[]> actual =
                run.apply(SweptTraining.of(drawn.with(onRanks), drawn.kind()));
        List<String> wrong = new ArrayList<>();
        if (actual.size() != expected.size()) {
            wrong.add(actual.size() + " arrays instead of " + expected.size());
            return wrong;
        }
        SweptRounding rounding = null;
        Iterator<double[]> arrays = actual.values().iterator();
        for (Map.Entry<String, double[]> entry : expected.entrySet()) {
            double[] array = arrays.next();
            double scale = SweptDifference.largest(entry.getValue());
            double difference = SweptDifference.of(array, entry.getValue());
            compared++;
            if (difference <= tolerance * scale) {
                if (scale > 0 && tolerance < 1e-4) {
                    largest.merge(
                            drawn.type() + " within " + tolerance, difference / scale, Math::max);
                }
                continue;
            }
            rounding = rounding == null ? new SweptRounding(drawn, run, gradients) : rounding;
            if (rounding.explains(entry.getKey(), array, exact ? entry.getValue() : null)) {
                rounded++;
            } else {
                wrong.add(
                        String.format(
                                "%s differs by %.2g of %.2g", entry.getKey(), difference, scale));
            }
        }
        return wrong;
    }

    /** Returns how many trainings were not compared: under DJL's trainer they diverge. */
    int diverged() {
        return diverged;
    }

    /** Returns how many arrays were compared. */
    int compared() {
        return compared;
    }

    /** Returns for how many of them {@link SweptRounding} was needed. */
    int rounded() {
        return rounded;
    }

    /** Returns the largest differences, relative to the arrays' largest elements; not of Adam. */
    Map<String, Double> largest() {
        return largest;
    }
}
