package io.djltp.update;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/** Some rows of a weight whose gradient is in memory. */
abstract class RowsWithGradient extends GradientRows {

    private final Tensor gradient; // [length, features], in the type that is computed in

    RowsWithGradient(Tensor weight, Tensor gradient) {
        super(weight);
        this.gradient = gradient;
    }

    /** {@inheritDoc} */
    @Override
    public final boolean isMade() {
        return true;
    }

    /** {@inheritDoc} */
    @Override
    public final Tensor gradient(float factor) {
        return factor == 1 ? gradient : gradient.mul_(new Scalar(factor));
    }

    /** {@inheritDoc} */
    @Override
    public final Tensor spare() {
        return torch.empty_like(gradient);
    }
}
