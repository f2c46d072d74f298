package io.djltp.loss;

import ai.djl.training.loss.HingeLoss;
import ai.djl.training.loss.L1Loss;
import ai.djl.training.loss.L2Loss;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SigmoidBinaryCrossEntropyLoss;
import ai.djl.training.loss.SoftmaxCrossEntropyLoss;

import java.util.Set;

/** The losses that are known to be means over rows: each rank can compute that of its rows. */
public final class MeanLosses {

    /** Means over all elements. Not their subclasses: these may do something else. */
    private static final Set<Class<?>> MEANS =
            Set.of(
                    L1Loss.class,
                    L2Loss.class,
                    HingeLoss.class,
                    SigmoidBinaryCrossEntropyLoss.class,
                    SoftmaxCrossEntropyLoss.class);

    private MeanLosses() {}

    /**
     * Returns whether a loss is the mean of those of its rows.
     *
     * @param loss the loss
     * @return whether it is one of DJL's means, or a {@link ShardedLoss} that is a mean
     */
    public static boolean contains(Loss loss) {
        return MEANS.contains(loss.getClass())
                || loss instanceof ShardedLoss && ((ShardedLoss) loss).isMean();
    }
}
