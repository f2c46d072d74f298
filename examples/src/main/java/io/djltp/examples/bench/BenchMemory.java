package io.djltp.examples.bench;

import io.djltp.examples.BadInputException;
import io.djltp.examples.OptimizerName;
import io.djltp.report.SystemMemory;

import java.util.Locale;

/** How much memory the processes of a measurement take together. */
final class BenchMemory {

    private static final double GIB = 1L << 30;
    private static final double FLOOR = 1.5 * GIB; // the process that measures what is possible

    private BenchMemory() {}

    /**
     * Refuses a measurement for which this machine has not enough memory.
     *
     * @param shape the sizes
     * @param optimizer the optimizer
     * @param ours the bytes of all processes of this library
     * @param stock the bytes of that of stock DJL
     */
    static void check(String shape, OptimizerName optimizer, double ours, double stock) {
        double total = ours + stock + FLOOR;
        SystemMemory.available()
                .ifPresent(
                        available -> {
                            if (available < total) {
                                throw new BadInputException(
                                        String.format(
                                                Locale.ROOT,
                                                "%s with %s needs about %.1f GiB of memory (this"
                                                        + " library %.1f, stock DJL %.1f), and %.1f"
                                                        + " GiB are available: use smaller sizes,"
                                                        + " fewer --ranks, or --no-stock",
                                                shape,
                                                optimizer.name().toLowerCase(Locale.ROOT),
                                                total / GIB,
                                                ours / GIB,
                                                stock / GIB,
                                                available / GIB));
                            }
                        });
    }
}
