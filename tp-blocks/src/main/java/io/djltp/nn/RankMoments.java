package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.internal.region.RegionMappings;

import java.util.Arrays;
import java.util.function.DoubleUnaryOperator;

/**
 * Mean and variance of values that ranks share out, as a part of the graph.
 *
 * <p>Rank r has {@code n_r} values of each of C kinds, and computes their mean {@code m_r} and the
 * sum {@code s_r} of the squares of their distances from it. From those of all ranks follows,
 * without the loss of digits of a difference of large squares (Chan, Golub and LeVeque, 1979),
 *
 * <pre>
 *   mean = m_0 + sum_r n_r (m_r - m_0) / n
 *   var  = sum_r (s_r + n_r (m_r - mean)^2) / n
 * </pre>
 *
 * <p>One all-gather of [m_r, s_r]; backward, every rank has a summand of their gradients, and one
 * reduce-scatter leaves each rank those of its own.
 *
 * @param mean the mean, [C]
 * @param variance the biased variance, [C]
 */
record RankMoments(NDArray mean, NDArray variance) {

    /**
     * Puts those of all ranks together.
     *
     * @param mappings the mappings of the group
     * @param mean this rank's mean, of C elements
     * @param squares this rank's sum of squares, of C elements
     * @param values how many values of a kind each rank has; one with 0 does not count
     * @return the moments
     */
    static RankMoments of(RegionMappings mappings, NDArray mean, NDArray squares, double[] values) {
        long kinds = mean.size();
        double count = Arrays.stream(values).sum();
        NDArray parts = mean.reshape(1, kinds).concat(squares.reshape(1, kinds), 1);
        long[] one = new long[values.length];
        Arrays.fill(one, 1);
        NDArray all = mappings.gatherFromSequenceRegion(parts, Cut.ofLengths(one), true);
        NDArray means = all.get(new NDIndex().addAllDim().addSliceDim(0, kinds));
        NDArray sums = all.get(new NDIndex().addAllDim().addSliceDim(kinds, 2 * kinds));
        NDArray weights = column(parts, values, n -> n / count);
        NDArray counted = column(parts, values, n -> n > 0 ? 1 / count : 0);
        NDArray first = means.get(new NDIndex().addSliceDim(0, 1)); // the weights are rounded
        NDArray whole = means.sub(first).mul(weights).sum(new int[] {0}).add(first.reshape(kinds));
        NDArray between = means.sub(whole);
        NDArray squared = between.mul(between).mul(weights);
        return new RankMoments(whole, squared.add(sums.mul(counted)).sum(new int[] {0}));
    }

    /** Returns a number for each rank, [ranks, 1], that lives as long as the graph. */
    private static NDArray column(NDArray like, double[] values, DoubleUnaryOperator weight) {
        float[] weights = new float[values.length];
        for (int i = 0; i < weights.length; i++) {
            weights[i] = (float) weight.applyAsDouble(values[i]);
        }
        NDArray column = like.getManager().create(weights, new Shape(weights.length, 1));
        return column.toType(like.getDataType(), false);
    }
}
