package io.djltp.head;

import io.djltp.head.ChunkBuffers.Column;
import io.djltp.head.ChunkBuffers.Matrix;
import io.djltp.torch.HostReads;

import org.bytedeco.javacpp.DoublePointer;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * The statistics of a rank that has all classes, on a processor, with nothing but the logits in the
 * loss: the {@link CrossEntropyFormula} in Java. To compute with one number for each row takes less
 * time than to call an operation that does. Exponentials, logarithms and the sum over the rows are
 * libtorch's, so that the results are those of {@link FusedStatistics} bit for bit.
 */
final class PlainStatistics extends FusedStatistics {

    private final Tensor numbers; // float64 [rows]: where Java and libtorch meet
    private final DoublePointer memory; // of the numbers
    private final double[] weights; // the w of the formula, by row
    private final double[] others; // the normalisers without the labels, by row
    private final double[] normalisers; // by row
    private final Tensor loss;

    /**
     * Computes the loss.
     *
     * @param pass a pass that {@link #fits}
     * @param linear the layer
     */
    PlainStatistics(FusedPass pass, ChunkedLinear linear) {
        super(pass, linear, null, true);
        numbers = pass.batch(buffers.sums()); // which are read already
        memory = numbers.data_ptr_double();
        weights = CrossEntropyFormula.weightsOf(pass.labels, pass.options);
        others = pass.otherSums();
        int rows = others.length;
        double[] logits = new double[rows];
        double[] ofLabels = HostReads.doubles(pass.labelLogits());
        for (int i = 0; i < ofLabels.length; i++) {
            logits[(int) pass.labels.rows[i]] = ofLabels[i];
        }
        memory.put(logits);
        numbers.exp_();
        normalisers = numbers(rows);
        for (int i = 0; i < rows; i++) {
            normalisers[i] += others[i];
        }
        memory.put(normalisers);
        numbers.log_();
        double[] losses = numbers(rows);
        for (int i = 0; i < rows; i++) {
            losses[i] = (losses[i] - logits[i]) * weights[i];
        }
        memory.put(losses);
        loss = numbers.sum().to(ScalarType.Float);
    }

    /**
     * Returns whether a pass of a rank with all classes and without a margin has statistics of this
     * kind.
     */
    static boolean fits(FusedPass pass) {
        LossOptions options = pass.options;
        return pass.rows > 0
                && !pass.isGuarded()
                && options.labelSmoothing() == 0
                && options.zLoss() == 0
                && options.reduction() != Reduction.NONE
                && !pass.buffers.sums().is_cuda();
    }

    private double[] numbers(int rows) {
        double[] values = new double[rows];
        memory.get(values);
        return values;
    }

    /** {@inheritDoc} */
    @Override
    Tensor loss() {
        return loss;
    }

    /** {@inheritDoc} */
    @Override
    Tensor featureGradient() {
        double[] values = new double[others.length];
        for (int i = 0; i < values.length; i++) {
            values[i] = weights[i] / normalisers[i];
        }
        memory.put(values);
        Tensor softmax = pass.batch(buffers.column(Column.SOFTMAX_FACTOR)).copy_(numbers);
        long[] rows = pass.labels.rows;
        for (int i = 0; i < rows.length; i++) {
            int row = (int) rows[i];
            values[i] = -(others[row] / normalisers[row]) * weights[row];
        }
        memory.put(values);
        Tensor parts = numbers.narrow(0, 0, rows.length).to(ScalarType.Float);
        Tensor products = pass.batch(buffers.rows(Matrix.PRODUCTS));
        Tensor gradient = products.mul(softmax.unsqueeze(1));
        addLabels(gradient, parts);
        return gradient;
    }
}
