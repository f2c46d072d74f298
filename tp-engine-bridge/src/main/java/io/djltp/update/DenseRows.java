package io.djltp.update;

import org.bytedeco.pytorch.Tensor;

/** Consecutive rows of a weight, in place, with their gradient. */
final class DenseRows extends RowsWithGradient {

    private final long first;

    DenseRows(Tensor weight, Tensor gradient, long first) {
        super(weight, gradient);
        this.first = first;
    }

    /** {@inheritDoc} */
    @Override
    public Tensor rowsOf(Tensor state, int number) {
        return state.narrow(0, first, weight.size(0));
    }

    /** {@inheritDoc} */
    @Override
    public void setRows(Tensor state, Tensor rows) {
        // they are the state's own
    }
}
