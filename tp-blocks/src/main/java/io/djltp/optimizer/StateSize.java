package io.djltp.optimizer;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.update.WeightUpdate;

/**
 * What an optimizer keeps of a weight, in numbers of 32 bits.
 *
 * @param ofElement the numbers of each element, such as 2 of Adam
 * @param ofRow the numbers of each row, such as 1 of row-wise Adagrad
 */
public record StateSize(long ofElement, long ofRow) {

    /**
     * Asks an optimizer's rule itself what it keeps: of two rows of three elements.
     *
     * @param optimizer the optimizer
     * @return what it keeps
     */
    public static StateSize of(OptimizerSettings optimizer) {
        long ofElement = 0;
        long ofRow = 0;
        try (NDManager manager = NDManager.newBaseManager();
                WeightUpdate update = optimizer.newUpdate()) {
            NDArray weight = manager.zeros(new Shape(2, 3));
            update.begin(0, 1);
            update.run(weight, weight.onesLike());
            for (NDArray kept : update.getState(manager).values()) {
                ofElement += kept.size() == weight.size() ? 1 : 0;
                ofRow += kept.size() == 2 ? 1 : 0;
            }
        }
        return new StateSize(ofElement, ofRow);
    }

    /**
     * Returns what is kept of a shard or a replica.
     *
     * @param shape its shape
     * @return the bytes
     */
    public long bytes(Shape shape) {
        long rows = shape.dimension() == 0 ? 1 : shape.get(0);
        return (ofElement * shape.size() + ofRow * rows) * Float.BYTES;
    }
}
