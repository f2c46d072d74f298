package io.djltp.examples.bench;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

import io.djltp.examples.OptimizerName;
import io.djltp.examples.bench.BenchWorker.Measured;
import io.djltp.internal.torch.BFloat16;
import io.djltp.internal.torch.LinearProduct;
import io.djltp.torch.Precision;

import java.util.Collections;
import java.util.EnumMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * The least time that a step can take: the larger of its operations at the rate of a large square
 * matrix product in its precision, and the bytes it cannot do without at the bandwidth of a copy.
 */
final class Floor {

    private final Precision precision;
    private final double operationsPerSecond;
    private final double bytesPerSecond;

    /**
     * Takes the best rates that were measured.
     *
     * @param precision that of the products
     * @param operationsPerSecond the rates of the product
     * @param bytesPerSecond the bandwidths of the copy
     */
    Floor(Precision precision, List<Double> operationsPerSecond, List<Double> bytesPerSecond) {
        this.precision = precision;
        this.operationsPerSecond = Collections.max(operationsPerSecond);
        this.bytesPerSecond = Collections.max(bytesPerSecond);
    }

    /** Returns the least time of a step in seconds. */
    double seconds(Workload workload, OptimizerName optimizer) {
        return Math.max(computing(workload), moving(workload, optimizer));
    }

    private double computing(Workload workload) {
        return workload.operations() / operationsPerSecond;
    }

    private double moving(Workload workload, OptimizerName optimizer) {
        return workload.leastBytes(optimizer) / bytesPerSecond;
    }

    /** Returns what the floor is made of, in words. */
    String describe(Workload workload, OptimizerName optimizer) {
        double computing = computing(workload);
        double moving = moving(workload, optimizer);
        return String.format(
                Locale.ROOT,
                "floor of %s, %s, %s%s: %s (%.4f s of operations at %.0f GFLOP/s, %.4f s of bytes at"
                        + " %.1f GB/s)",
                workload.shape(),
                optimizer,
                precision,
                workload.loss() == Workload.LossKind.SOFTMAX ? "" : ", " + workload.loss(),
                computing > moving ? "operations" : "bytes",
                computing,
                operationsPerSecond / 1e9,
                moving,
                bytesPerSecond / 1e9);
    }

    /** What the machine can do with all its cores: the rates that the floor is made of. */
    static final class FloorProbe implements Measured {

        private static final int PRODUCTS = 4; // of which the fastest counts
        private static final int COPIED = 32; // times their elements: more than caches hold

        private final NDManager manager = NDManager.newBaseManager(Device.cpu());
        private final Map<Precision, NDArray[]> factors = new EnumMap<>(Precision.class);
        private final long side;
        private final NDArray from;
        private final NDArray to;

        FloorProbe(long side) {
            this.side = side;
            from = manager.ones(new Shape(COPIED * side * side));
            to = manager.zeros(from.getShape());
            NDArray left = manager.randomNormal(new Shape(side, side));
            NDArray right = manager.randomNormal(new Shape(side, side));
            for (Precision precision : Precision.available(Device.cpu())) {
                boolean wide = precision == Precision.FLOAT32;
                factors.put(
                        precision,
                        new NDArray[] {
                            wide ? left : BFloat16.bitsOf(left, manager),
                            wide ? right : BFloat16.bitsOf(right, manager)
                        });
            }
        }

        /**
         * Returns the place of a rate among those that a step measures.
         *
         * @param precision that of the products
         * @return the index, the first after that of the copy
         */
        static int rateOf(Precision precision) {
            return 1 + precision.ordinal();
        }

        /**
         * {@inheritDoc}
         *
         * @return the bytes a second that a copy reads and writes, and for each precision that the
         *     processor has the operations a second of a large square matrix product: see {@link
         *     #rateOf}
         */
        @Override
        public double[] step() {
            double[] rates = new double[1 + Precision.values().length];
            factors.forEach((precision, each) -> rates[rateOf(precision)] = rate(precision, each));
            long begin = System.nanoTime();
            to.set(new NDIndex(":"), from); // copyTo() goes through Java memory
            rates[0] = 2.0 * Float.BYTES * from.size() / ((System.nanoTime() - begin) / 1e9);
            return rates;
        }

        private double rate(Precision precision, NDArray[] factors) {
            double product = Double.MAX_VALUE;
            for (int i = 0; i < PRODUCTS; i++) {
                long begin = System.nanoTime();
                NDArray result =
                        precision == Precision.FLOAT32
                                ? new LinearProduct(precision).of(factors[0], factors[1], null)
                                : BFloat16.dot(factors[0], factors[1]);
                product = Math.min(product, (System.nanoTime() - begin) / 1e9);
                result.close();
            }
            return 2.0 * side * side * side / product;
        }

        /** {@inheritDoc} */
        @Override
        public void close() {
            manager.close();
        }
    }
}
