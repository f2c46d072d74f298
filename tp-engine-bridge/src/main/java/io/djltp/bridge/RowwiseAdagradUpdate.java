package io.djltp.bridge;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;

/** Adagrad with one number of state for each row. */
final class RowwiseAdagradUpdate extends WeightUpdate {

    private final float epsilon;
    private Tensor sums;

    RowwiseAdagradUpdate(Settings settings, float epsilon) {
        super(settings);
        this.epsilon = epsilon;
    }

    /** {@inheritDoc} */
    @Override
    void prepare(long classes, long features, TensorOptions options) {
        if (sums == null) {
            sums = zeros(options, classes);
        }
    }

    /** {@inheritDoc} */
    @Override
    void apply(GradientRows chunk) {
        Tensor weight = chunk.weight;
        Tensor gradient = chunk.whole(settings);
        if (settings.weightDecay() != 0) {
            gradient.add_(weight, new Scalar(settings.weightDecay()));
        }
        Tensor rows = chunk.rowsOf(sums, 0);
        RowwiseAdagradStep.move(weight, gradient, chunk.spare(), rows, learningRate, epsilon);
        chunk.setRows(sums, rows);
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        free(sums);
        sums = null;
    }
}
