package io.djltp.examples.bench;

import org.apache.commons.statistics.descriptive.Median;
import org.apache.commons.statistics.descriptive.Quantile;

import java.util.List;

/** What was measured of one thing, again and again. */
final class Samples {

    private Samples() {}

    /**
     * Returns the median.
     *
     * @param values the values, at least one
     * @return the median
     */
    static double median(List<Double> values) {
        return Median.withDefaults().evaluate(array(values));
    }

    /**
     * Returns how far values are spread.
     *
     * @param values the values, at least one
     * @return the distance between the first and the third quartile, divided by the median
     */
    static double spread(List<Double> values) {
        double[] quartiles = Quantile.withDefaults().evaluate(array(values), 0.25, 0.5, 0.75);
        return (quartiles[2] - quartiles[0]) / quartiles[1];
    }

    private static double[] array(List<Double> values) {
        return values.stream().mapToDouble(Double::doubleValue).toArray();
    }
}
