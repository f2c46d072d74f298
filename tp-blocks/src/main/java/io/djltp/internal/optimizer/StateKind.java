package io.djltp.internal.optimizer;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.update.WeightUpdate;

import java.util.ArrayList;
import java.util.List;

/**
 * An array that an optimizer keeps of each weight.
 *
 * @param name its name, such as {@code momentum}
 * @param ofRows whether it has one number for each row, and not for each element
 */
public record StateKind(String name, boolean ofRows) {

    /**
     * Returns what is kept of a shard or a replica.
     *
     * @param shape its shape
     * @return the bytes, of numbers of 32 bits
     */
    public long bytes(Shape shape) {
        long rows = shape.dimension() == 0 ? 1 : shape.get(0);
        return (ofRows ? rows : shape.size()) * Float.BYTES;
    }

    /**
     * Returns whether an optimizer keeps numbers of elements, and nothing of rows: ranks can then
     * share out its state, each with that of some elements.
     *
     * @param optimizer the optimizer
     * @return whether it does
     */
    public static boolean areOfElements(OptimizerSettings optimizer) {
        List<StateKind> kinds = of(optimizer);
        return !kinds.isEmpty() && kinds.stream().noneMatch(StateKind::ofRows);
    }

    /**
     * Asks an optimizer's rule itself what it keeps: of two rows of three elements.
     *
     * @param optimizer the optimizer
     * @return what it keeps, by name in ascending order
     */
    public static List<StateKind> of(OptimizerSettings optimizer) {
        List<StateKind> kinds = new ArrayList<>();
        try (NDManager manager = NDManager.newBaseManager();
                WeightUpdate update = optimizer.newUpdate()) {
            NDArray weight = manager.zeros(new Shape(2, 3));
            update.begin(0, 1);
            update.prepare(weight, weight.getDataType());
            update.getState(manager)
                    .forEach((name, kept) -> kinds.add(new StateKind(name, kept.size() == 2)));
        }
        return kinds;
    }
}
