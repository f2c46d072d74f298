package io.djltp.update;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;

import java.util.Map;

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
    public void prepare(long classes, long features, TensorOptions options) {
        if (momentum != 0 && state == null) {
            state = zeros(options, classes, features);
        }
    }

    /** {@inheritDoc} */
    @Override
    public void apply(GradientRows chunk) {
        if (chunk.isMade() && state == null && settings.weightDecay() == 0) {
            // the bits of the fused operator, whose list of arguments takes longer than the sum
            chunk.weight.add_(chunk.whole(settings), new Scalar(-learningRate));
        } else if (settings.isClipped() || chunk.isMade()) {
            Tensor moved = state == null ? null : chunk.rowsOf(state, 0);
            FusedOperator.sgd(
                    chunk.weight,
                    chunk.whole(settings),
                    moved,
                    learningRate,
                    momentum,
                    settings.weightDecay());
            if (moved != null) {
                chunk.setRows(state, moved);
            }
        } else {
            addProduct(chunk);
        }
    }

    /** The same with a gradient that is only computed into what it is added to. */
    private void addProduct(GradientRows chunk) {
        Tensor weight = chunk.weight;
        float decay = learningRate * settings.weightDecay();
        float factor = learningRate * settings.rescale();
        if (momentum == 0) {
            chunk.addTo(weight, 1 - decay, -factor);
            return;
        }
        Tensor moved = chunk.rowsOf(state, 0);
        chunk.addTo(moved, momentum, factor);
        if (decay != 0) {
            moved.add_(weight, new Scalar(decay));
        }
        weight.sub_(moved);
        chunk.setRows(state, moved);
    }

    /** {@inheritDoc} */
    @Override
    protected Map<String, Tensor> state() {
        return state == null ? Map.of() : Map.of("momentum", state);
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        free(state);
        state = null;
    }
}
