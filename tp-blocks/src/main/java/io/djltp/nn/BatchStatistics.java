package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.layout.ForwardPass;
import io.djltp.rank.ParallelContext;
import io.djltp.torch.Autograd;
import io.djltp.torch.IndexedRows;

import java.util.Arrays;
import java.util.function.DoubleUnaryOperator;
import java.util.stream.IntStream;

/**
 * Mean and variance of each channel over the rows of all ranks, as a part of the graph.
 *
 * <p>A rank computes the mean {@code m_r} of its {@code n_r} values, and the sum {@code s_r} of the
 * squares of their distances from it. From those of all ranks follows, without the loss of digits
 * of a difference of large squares (Chan, Golub and LeVeque, 1979),
 *
 * <pre>
 *   mean = m_0 + sum_r n_r (m_r - m_0) / n
 *   var  = sum_r (s_r + n_r (m_r - mean)^2) / n
 * </pre>
 *
 * <p>One all-gather of [m_r, s_r]; backward, every rank has a summand of their gradients, and one
 * reduce-scatter leaves each rank those of its own. How many values a rank has follows from the cut
 * of the batch; a rank without a row computes another's, which has the weight 0. Rows of float16
 * are computed with in float32, as libtorch does.
 */
@SuppressWarnings("try") // a scope is used by being open
final class BatchStatistics {

    private final NDArray x; // the rows, in float32 if they are float16
    private final NDArray rows;
    private final NDArray mean; // [channels]
    private final NDArray variance; // [channels], biased
    private final Shape channelShape; // [1, .., channels, .., 1]
    private final double count;

    /**
     * Computes the statistics.
     *
     * @param context the rank
     * @param rows the rank's rows
     * @param axis the axis of the channels
     */
    BatchStatistics(ParallelContext context, NDArray rows, int axis) {
        this.rows = rows;
        // sums of 16 bits overflow, or stand still
        x = rows.getDataType() == DataType.FLOAT16 ? Autograd.toFloat32(rows) : rows;
        Shape shape = x.getShape();
        long channels = shape.get(axis);
        long[] ones = new long[shape.dimension()];
        Arrays.fill(ones, 1);
        ones[axis] = channels;
        channelShape = new Shape(ones);
        double[] values = values(context.getPass(), shape, axis);
        count = Arrays.stream(values).sum();
        if (count <= 1) {
            throw new IllegalArgumentException(
                    "SyncBatchNorm needs more than one value of each channel to train on, and"
                            + " the batch has one: "
                            + shape);
        }
        int[] others = IntStream.range(0, ones.length).filter(i -> i != axis).toArray();
        NDArray own = x;
        for (int other : others) {
            own = own.mean(new int[] {other}, true);
        }
        NDArray distance = x.sub(own);
        NDArray squares = distance.mul(distance).sum(others);
        NDArray parts = own.reshape(1, channels).concat(squares.reshape(1, channels), 1);
        long[] one = new long[values.length];
        Arrays.fill(one, 1);
        NDArray all =
                context.getBatchMappings()
                        .gatherFromSequenceRegion(parts, Cut.ofLengths(one), true);
        NDArray means = all.get(new NDIndex().addAllDim().addSliceDim(0, channels));
        NDArray sums = all.get(new NDIndex().addAllDim().addSliceDim(channels, 2 * channels));
        NDArray weights = column(values, n -> n / count);
        NDArray counted = column(values, n -> n > 0 ? 1 / count : 0);
        NDArray first = means.get(new NDIndex().addSliceDim(0, 1)); // the weights are rounded
        mean = means.sub(first).mul(weights).sum(new int[] {0}).add(first.reshape(channels));
        NDArray between = means.sub(mean);
        NDArray squared = between.mul(between).mul(weights);
        variance = squared.add(sums.mul(counted)).sum(new int[] {0});
    }

    /** Returns the number of values that each rank has of a channel. */
    private static double[] values(ForwardPass pass, Shape shape, int axis) {
        long rows = Math.max(1, pass.getRows());
        if (shape.get(0) % rows != 0) {
            throw new IllegalArgumentException(
                    "Axis 0 of the input "
                            + shape
                            + " of a SyncBatchNorm must be the rows of the batch, here "
                            + rows
                            + " of "
                            + pass.getGlobalRows());
        }
        double each = (double) shape.size() / shape.get(axis) / rows; // such as the pixels
        return Arrays.stream(pass.getBatchCut().getShardLengths())
                .mapToDouble(length -> length * each)
                .toArray();
    }

    /** Returns a number for each rank, [ranks, 1], that lives as long as the graph. */
    private NDArray column(double[] values, DoubleUnaryOperator weight) {
        float[] weights = new float[values.length];
        for (int i = 0; i < weights.length; i++) {
            weights[i] = (float) weight.applyAsDouble(values[i]);
        }
        NDArray column = x.getManager().create(weights, new Shape(weights.length, 1));
        return column.toType(x.getDataType(), false);
    }

    /**
     * Adds the statistics to running ones.
     *
     * @param runningMean the running mean, changed in place
     * @param runningVar the running variance, changed in place
     * @param momentum the share that they keep
     */
    void addTo(NDArray runningMean, NDArray runningVar, float momentum) {
        try (Autograd.GradMode mode = Autograd.gradMode(false);
                NDManager scope = x.getManager().newSubManager()) {
            NDArray newMean = Autograd.detach(mean, scope);
            NDArray newVar = Autograd.detach(variance, scope);
            float unbiased = (float) ((1 - momentum) * count / (count - 1));
            runningMean.muli(momentum).addi(newMean.mul(1 - momentum));
            runningVar.muli(momentum).addi(newVar.mul(unbiased));
        }
    }

    /**
     * Normalizes the rows.
     *
     * @param gamma the scale of each channel, [channels]
     * @param beta the shift of each channel, [channels]
     * @param epsilon what is added to the variance
     * @return the normalized rows, attached to the manager of the rows
     */
    NDArray normalize(NDArray gamma, NDArray beta, float epsilon) {
        NDArray deviation = variance.add(epsilon).sqrt().reshape(channelShape);
        try (NDArray scale = gamma.reshape(channelShape); // not left to the parameter's manager
                NDArray shift = beta.reshape(channelShape)) {
            NDArray normalized = x.sub(mean.reshape(channelShape)).div(deviation);
            NDArray result = normalized.mul(scale).add(shift);
            return x == rows ? result : IndexedRows.inTypeOf(result, rows, rows.getManager());
        }
    }
}
