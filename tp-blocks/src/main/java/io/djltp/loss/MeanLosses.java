package io.djltp.loss;

import ai.djl.ndarray.types.Shape;
import ai.djl.training.loss.HingeLoss;
import ai.djl.training.loss.L1Loss;
import ai.djl.training.loss.L2Loss;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SigmoidBinaryCrossEntropyLoss;
import ai.djl.training.loss.SoftmaxCrossEntropyLoss;

import java.lang.reflect.Field;
import java.util.Set;

/** The losses that are known to be means over rows: each rank can compute that of its rows. */
public final class MeanLosses {

    /** Means over all elements. Not their subclasses: these may do something else. */
    private static final Set<Class<?>> MEANS =
            Set.of(
                    L1Loss.class,
                    L2Loss.class,
                    HingeLoss.class,
                    SigmoidBinaryCrossEntropyLoss.class);

    private MeanLosses() {}

    /**
     * Returns whether the mean of the losses of two halves of a batch is that of the batch.
     *
     * @param loss the loss
     * @param outputs the shapes of the outputs
     * @return whether it is a {@link ShardedLoss} that is a mean, or one of DJL's means, whose
     *     class axis is not that of the rows
     */
    public static boolean contains(Loss loss, Shape... outputs) {
        if (loss.getClass() == SoftmaxCrossEntropyLoss.class) {
            Integer axis = classAxis(loss);
            int axes = outputs[0].dimension();
            return axis != null
                    && outputs.length == 1
                    && axes > 0
                    && Math.floorMod(axis, axes) != 0;
        }
        return MEANS.contains(loss.getClass())
                || loss instanceof ShardedLoss && ((ShardedLoss) loss).isMean();
    }

    /** Reads what DJL keeps to itself, or returns {@code null} if this DJL has no such field. */
    private static Integer classAxis(Loss loss) {
        try {
            Field field = SoftmaxCrossEntropyLoss.class.getDeclaredField("classAxis");
            field.setAccessible(true);
            return field.getInt(loss);
        } catch (ReflectiveOperationException e) {
            return null; // the loss is computed of all rows then
        }
    }
}
