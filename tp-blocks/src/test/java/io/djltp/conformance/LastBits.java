package io.djltp.conformance;

import java.util.SplittableRandom;

/**
 * Changes numbers of float32 in their last bit, up or down by chance.
 *
 * @param seed which change, or 0: none
 * @param array the number of the array
 */
record LastBits(long seed, int array) {

    float[] change(float[] values) {
        if (seed == 0) {
            return values;
        }
        SplittableRandom random = new SplittableRandom(10_000 * seed + array);
        float[] changed = values.clone();
        for (int i = 0; i < changed.length; i++) {
            changed[i] = random.nextBoolean() ? Math.nextUp(changed[i]) : Math.nextDown(changed[i]);
        }
        return changed;
    }
}
