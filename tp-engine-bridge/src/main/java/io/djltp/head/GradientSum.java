package io.djltp.head;

import io.djltp.update.GradientRows;
import io.djltp.update.WeightUpdate;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;

import java.util.Map;

/** Adds the gradient of a head to a sum and leaves the weight as it is. */
final class GradientSum extends WeightUpdate {

    private final Tensor sum; // float32 [classes/p, features]
    private final boolean first; // whether what is in the sum does not count

    GradientSum(Tensor sum, boolean first) {
        super(Settings.DEFAULT);
        this.sum = sum;
        this.first = first;
    }

    /** {@inheritDoc} */
    @Override
    protected Map<String, Tensor> state() {
        return Map.of();
    }

    /** {@inheritDoc} */
    @Override
    public void prepare(long classes, long features, TensorOptions options) {
        // who made this has made the sum, too
    }

    /** {@inheritDoc} */
    @Override
    public void apply(GradientRows chunk) {
        Tensor rows = chunk.rowsOf(sum, 0);
        chunk.addTo(first ? rows.zero_() : rows, 1, 1);
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        // who made the sum closes it
    }
}
