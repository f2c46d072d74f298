package io.djltp.conformance;

/** By how much arrays differ. */
final class SweptDifference {

    private SweptDifference() {}

    /** Returns the largest difference of two elements; infinite for other lengths, and for NaN. */
    static double of(double[] actual, double[] expected) {
        if (actual.length != expected.length) {
            return Double.POSITIVE_INFINITY;
        }
        double largest = 0;
        for (int i = 0; i < actual.length; i++) {
            double difference = Math.abs(actual[i] - expected[i]);
            largest = Math.max(largest, difference >= 0 ? difference : Double.POSITIVE_INFINITY);
        }
        return largest;
    }

    /** Returns the largest element without its sign. */
    static double largest(double[] values) {
        return of(values, new double[values.length]);
    }
}
