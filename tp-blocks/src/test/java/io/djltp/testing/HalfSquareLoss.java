package io.djltp.testing;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.training.loss.Loss;

/**
 * DJL's {@code L2Loss}, with a factor that is there as long as the prediction.
 *
 * <p>DJL 0.35 passes the number of {@code array.mul(number)} to libtorch in Java memory that the
 * collector may free while the graph still needs it. A collection between forward and backward then
 * gives a wrong gradient, with DJL's own trainer too, about once in a thousand small steps.
 */
public final class HalfSquareLoss extends Loss {

    /** Creates a loss. */
    public HalfSquareLoss() {
        super("L2Loss");
    }

    /** {@inheritDoc} */
    @Override
    public NDArray evaluate(NDList labels, NDList predictions) {
        NDArray prediction = predictions.singletonOrThrow();
        NDArray half = prediction.getManager().create(0.5f); // not closed before the manager is
        NDArray label = labels.singletonOrThrow().reshape(prediction.getShape());
        return label.sub(prediction).square().mean().mul(half);
    }
}
