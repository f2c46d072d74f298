package io.djltp.conformance;

import ai.djl.ndarray.types.DataType;

import java.util.SplittableRandom;

/**
 * Changes numbers of float32 or float64 in their last bit, up or down by chance.
 *
 * @param seed which change, or 0: none
 * @param array the number of the array
 */
record LastBits(long seed, int array) {

    double[] change(double[] values, DataType type) {
        if (seed == 0) {
            return values;
        }
        SplittableRandom random = new SplittableRandom(10_000 * seed + array);
        double[] changed = values.clone();
        for (int i = 0; i < changed.length; i++) {
            double to = random.nextBoolean() ? Double.POSITIVE_INFINITY : Double.NEGATIVE_INFINITY;
            if (changed[i] == 0) {
                continue; // a bias at first: it is not rounded
            }
            changed[i] =
                    type == DataType.FLOAT64
                            ? Math.nextAfter(changed[i], to)
                            : Math.nextAfter((float) changed[i], to);
        }
        return changed;
    }
}
