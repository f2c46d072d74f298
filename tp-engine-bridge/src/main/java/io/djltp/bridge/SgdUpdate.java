package io.djltp.bridge;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;

/** Stochastic gradient descent. As in DJL, the state of the momentum includes the learning rate. */
final class SgdUpdate extends WeightUpdate {

    private final float momentum;
    private Tensor state;

    SgdUpdate(Settings settings, float momentum) {
        super(settings);
        this.momentum = momentum;
    }

    /** {@inheritDoc} */
    @Override
    void prepare(long classes, long features, TensorOptions options) {
        if (momentum != 0 && state == null) {
            state = zeros(options, classes, features);
        }
    }

    /** {@inheritDoc} */
    @Override
    void apply(GradientRows chunk) {
        Tensor weight = chunk.weight;
        float decay = learningRate * settings.weightDecay();
        float factor = learningRate * settings.rescale();
        if (momentum == 0) {
            if (settings.clip() > 0) {
                Tensor gradient = chunk.whole(settings);
                scale(weight, 1 - decay);
                weight.sub_(gradient, new Scalar(learningRate));
            } else {
                chunk.addTo(weight, 1 - decay, -factor);
            }
            return;
        }
        Tensor moved = chunk.rowsOf(state, 0);
        if (settings.clip() > 0) {
            moved.mul_(new Scalar(momentum));
            moved.add_(chunk.whole(settings), new Scalar(learningRate));
        } else {
            chunk.addTo(moved, momentum, factor);
        }
        if (decay != 0) {
            moved.add_(weight, new Scalar(decay));
        }
        weight.sub_(moved);
        chunk.setRows(state, moved);
    }

    private static void scale(Tensor weight, float factor) {
        if (factor != 1) {
            weight.mul_(new Scalar(factor));
        }
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        free(state);
        state = null;
    }
}
