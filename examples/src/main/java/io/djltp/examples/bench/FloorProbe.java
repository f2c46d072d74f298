package io.djltp.examples.bench;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

/** What the machine can do with all its cores: the rates that the floor is made of. */
final class FloorProbe implements Measured {

    private static final int SQUARE = 2048;
    private static final int PRODUCTS = 4; // of which the fastest counts
    private static final long COPIED = 128L << 20; // floats: more than caches hold

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
        double product = Double.MAX_VALUE;
        for (int i = 0; i < PRODUCTS; i++) {
            long begin = System.nanoTime();
            left.dot(right).close();
            product = Math.min(product, (System.nanoTime() - begin) / 1e9);
        }
        long begin = System.nanoTime();
        to.set(new NDIndex(":"), from); // copyTo() goes through Java memory
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
