package io.djltp.examples.bench;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

/** What the machine can do with all its cores: the rates that the floor is made of. */
final class FloorProbe implements Measured {

    private static final int SQUARE = 4096;
    private static final long COPIED = 64L << 20; // floats: more than any cache holds

    private final NDManager manager = NDManager.newBaseManager(Device.cpu());
    private final NDArray left = manager.randomNormal(new Shape(SQUARE, SQUARE));
    private final NDArray right = manager.randomNormal(new Shape(SQUARE, SQUARE));
    private final NDArray from = manager.ones(new Shape(COPIED));
    private final NDArray to = manager.zeros(new Shape(COPIED));

    /**
     * {@inheritDoc}
     *
     * @return the operations a second of a large square matrix product, and the bytes a second that
     *     a copy reads and writes
     */
    @Override
    public double[] step() {
        long begin = System.nanoTime();
        left.dot(right).close();
        double product = (System.nanoTime() - begin) / 1e9;
        begin = System.nanoTime();
        from.copyTo(to);
        double copy = (System.nanoTime() - begin) / 1e9;
        return new double[] {
            2.0 * SQUARE * SQUARE * SQUARE / product, 2 * Float.BYTES * COPIED / copy
        };
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        manager.close();
    }
}
