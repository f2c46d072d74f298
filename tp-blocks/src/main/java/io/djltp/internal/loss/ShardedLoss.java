package io.djltp.internal.loss;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.loss.HingeLoss;
import ai.djl.training.loss.L1Loss;
import ai.djl.training.loss.L2Loss;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SigmoidBinaryCrossEntropyLoss;
import ai.djl.training.loss.SoftmaxCrossEntropyLoss;

import org.jspecify.annotations.Nullable;

import java.lang.reflect.Field;
import java.util.Set;

/**
 * A loss that computes on predictions which are cut over the ranks, each rank on its slice. The
 * trainer refuses any other loss on such predictions.
 */
public interface ShardedLoss {

    /**
     * Returns what the mean of this loss over a part of the batch counts for in the mean over the
     * whole batch: the number of rows that the mean is taken over, or the sum of their weights.
     *
     * @param labels the labels of the part
     * @param predictions the shape of its predictions, [x1, ..., xn, columns]
     * @return the weight
     */
    float getWeight(NDList labels, Shape predictions);

    /**
     * Returns whether the loss is a mean over rows. One that is not is computed of all rows.
     *
     * @return whether means of parts of a batch, by their weight, have the loss as their mean
     */
    default boolean isMean() {
        return true;
    }

    /**
     * Checks the labels of the whole batch on every rank, before any of them computes its part and
     * waits for the others: so all refuse alike.
     *
     * @param labels the labels of the whole batch
     * @param predictions the shape of the predictions of the whole batch, [x1, ..., xn, columns]
     * @param classes the number of classes over all ranks
     * @throws IllegalArgumentException if a label is no class
     */
    default void checkLabels(NDList labels, Shape predictions, long classes) {}

    /**
     * Returns whether the mean of the losses of two halves of a batch is that of the batch.
     *
     * @param loss the loss
     * @param outputs the shapes of the outputs
     * @return whether it is a {@link ShardedLoss} that is a mean, or one of DJL's means, whose
     *     class axis is not that of the rows
     */
    static boolean isMean(Loss loss, Shape... outputs) {
        if (loss.getClass() == SoftmaxCrossEntropyLoss.class) {
            Integer axis = classAxis(loss);
            int axes = outputs[0].dimension();
            return axis != null
                    && outputs.length == 1
                    && axes > 0
                    && Math.floorMod(axis, axes) != 0;
        }
        // not their subclasses: these may do something else
        Set<Class<?>> means =
                Set.of(
                        L1Loss.class,
                        L2Loss.class,
                        HingeLoss.class,
                        SigmoidBinaryCrossEntropyLoss.class);
        return means.contains(loss.getClass())
                || loss instanceof ShardedLoss sharded && sharded.isMean();
    }

    /** Reads what DJL keeps to itself, or returns {@code null} if this DJL has no such field. */
    private static @Nullable Integer classAxis(Loss loss) {
        try {
            Field field = SoftmaxCrossEntropyLoss.class.getDeclaredField("classAxis");
            field.setAccessible(true);
            return field.getInt(loss);
        } catch (ReflectiveOperationException e) {
            return null; // the loss is computed of all rows then
        }
    }
}
