package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.training.loss.Loss;

/**
 * The user's loss as the coordinator sees it: what the ranks have computed for a {@link
 * ParallelOutput}, and the loss itself for anything else. It bears the name of the user's loss.
 */
final class RankLoss extends Loss {

    private final Loss loss;

    RankLoss(Loss loss) {
        super(loss.getName());
        this.loss = loss;
    }

    /** {@inheritDoc} */
    @Override
    public NDArray evaluate(NDList labels, NDList predictions) {
        return predictions instanceof ParallelOutput
                ? ((ParallelOutput) predictions).getLoss(labels)
                : loss.evaluate(labels, predictions);
    }
}
