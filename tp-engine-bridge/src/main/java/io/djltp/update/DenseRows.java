package io.djltp.update;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/** Some rows of a weight whose gradient is there. */
final class DenseRows extends GradientRows {

    private final Tensor gradient; // [length, features], in the type that is computed in
    private final long first;

    DenseRows(Tensor weight, Tensor gradient, long first) {
        super(weight);
        this.gradient = gradient;
        this.first = first;
    }

    /** {@inheritDoc} */
    @Override
    public boolean isMade() {
        return true;
    }

    /** {@inheritDoc} */
    @Override
    public Tensor gradient(float factor) {
        return factor == 1 ? gradient : gradient.mul_(new Scalar(factor));
    }

    /** {@inheritDoc} */
    @Override
    public Tensor spare() {
        return torch.empty_like(gradient);
    }

    /** {@inheritDoc} */
    @Override
    public Tensor rowsOf(Tensor state, int number) {
        return state.narrow(0, first, gradient.size(0));
    }

    /** {@inheritDoc} */
    @Override
    public void setRows(Tensor state, Tensor rows) {
        // they are the state's own
    }
}
