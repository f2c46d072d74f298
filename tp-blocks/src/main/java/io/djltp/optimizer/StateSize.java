package io.djltp.optimizer;

import ai.djl.ndarray.types.Shape;

import java.util.List;

/**
 * What an optimizer keeps of a weight, in numbers of 32 bits.
 *
 * @param ofElement the numbers of each element, such as 2 of Adam
 * @param ofRow the numbers of each row, such as 1 of row-wise Adagrad
 */
public record StateSize(long ofElement, long ofRow) {

    /**
     * Asks an optimizer's rule itself what it keeps.
     *
     * @param optimizer the optimizer
     * @return what it keeps
     */
    public static StateSize of(OptimizerSettings optimizer) {
        List<StateKind> kinds = StateKind.of(optimizer);
        long ofRow = kinds.stream().filter(StateKind::ofRows).count();
        return new StateSize(kinds.size() - ofRow, ofRow);
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
