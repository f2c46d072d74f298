package io.djltp.examples.bench;

import io.djltp.examples.OptimizerName;
import io.djltp.torch.Precision;

import java.util.Collections;
import java.util.List;
import java.util.Locale;

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
                "floor of %s, %s, %s: %s (%.4f s of operations at %.0f GFLOP/s, %.4f s of bytes at"
                        + " %.1f GB/s)",
                workload.shape(),
                optimizer.name().toLowerCase(Locale.ROOT),
                precision,
                computing > moving ? "operations" : "bytes",
                computing,
                operationsPerSecond / 1e9,
                moving,
                bytesPerSecond / 1e9);
    }
}
