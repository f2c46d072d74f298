package io.djltp.spark.ml;

import java.util.Random;

/** The order in which a rank meets its rows in an epoch. */
final class EpochOrder {

    private static final long EPOCHS = 0x9E3779B97F4A7C15L; // apart, however they follow each other
    private static final long RANKS = 0xC2B2AE3D27D4EB4FL;

    private EpochOrder() {}

    /**
     * Shuffles the rows of a rank. The order follows from the arguments, in any Java.
     *
     * @param rows how many rows the rank has
     * @param seed the seed of the training
     * @param epoch the epoch, from 0
     * @param rank the rank
     * @return the numbers of its rows
     */
    static int[] of(long rows, long seed, int epoch, int rank) {
        int[] order = new int[Math.toIntExact(rows)];
        Random random = new Random(seed + EPOCHS * (epoch + 1) + RANKS * (rank + 1));
        for (int i = 0; i < order.length; i++) {
            int j = random.nextInt(i + 1);
            order[i] = order[j];
            order[j] = i;
        }
        return order;
    }
}
