package io.djltp.head;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;

/**
 * How the classes of a lane are cut into chunks, and the exponentials of how many chunks are kept
 * from the pass that computes the loss to the one that updates the weights.
 *
 * @param rows the rows of the batch
 * @param range the classes of the lane, counted from the first class of the rank
 * @param chunk the classes of a chunk; the last chunk may have fewer
 * @param count the number of chunks
 * @param kept the number of chunks, from the first, whose exponentials are kept
 */
record ChunkPlan(long rows, ShardRange range, long chunk, int count, int kept) {

    /**
     * The bytes that weights and logits of a chunk take together on a CPU: few enough to stay in
     * the cache of one core from one operation to the next.
     */
    private static final long CPU_BYTES = 1L << 20;

    /** A GPU needs enough work for each of its kernels instead. */
    private static final long GPU_BYTES = 256L << 20;

    private static final long SMALLEST = 256;

    /**
     * Plans the chunks of the lanes of a rank. There are fewer lanes than wanted if there are not
     * classes or memory enough.
     *
     * @param rows the rows of the batch
     * @param features the length of a row of features
     * @param classes the classes of the rank
     * @param wanted the classes of a chunk, or 0 for what suits the device
     * @param budget the bytes that logits may take on the rank
     * @param lanes the number of lanes that are wanted
     * @param gpu whether the device is a GPU
     * @return the plan of each lane
     * @throws IllegalArgumentException if not one chunk fits in
     */
    static ChunkPlan[] of(
            long rows,
            long features,
            long classes,
            long wanted,
            long budget,
            int lanes,
            boolean gpu) {
        long size = wanted == 0 ? suitable(rows, features, budget, gpu) : wanted;
        long chunk = Math.min(size, classes);
        long bytes = rows * chunk * Float.BYTES;
        if (bytes > budget) {
            throw new IllegalArgumentException(
                    "A memory budget of "
                            + budget
                            + " bytes is too small for the logits of one chunk: "
                            + rows
                            + " rows of "
                            + chunk
                            + " classes take "
                            + bytes
                            + " bytes. Use optFusedMemory("
                            + bytes
                            + ") or more, or a smaller batch");
        }
        long chunks = (classes + chunk - 1) / chunk;
        int count = (int) Math.max(1, Math.min(Math.min(lanes, budget / bytes), chunks));
        ChunkPlan[] plans = new ChunkPlan[count];
        for (int lane = 0; lane < count; lane++) {
            ShardRange range = Cut.balanced(classes, count).getRange(lane);
            plans[lane] = of(rows, range, chunk, budget / bytes / count);
        }
        return plans;
    }

    /** One of the places for chunks is for those that are not kept. */
    private static ChunkPlan of(long rows, ShardRange range, long chunk, long places) {
        int count = Math.toIntExact((range.length() + chunk - 1) / chunk);
        return new ChunkPlan(rows, range, chunk, count, (int) Math.min(count, places - 1));
    }

    private static long suitable(long rows, long features, long budget, boolean gpu) {
        long fitting = (gpu ? GPU_BYTES : CPU_BYTES) / (Float.BYTES * (rows + features));
        long affordable = budget / (Float.BYTES * Math.max(1, rows));
        return Math.max(SMALLEST, highestPower(Math.min(fitting, affordable)));
    }

    private static long highestPower(long value) {
        return Long.highestOneBit(Math.max(1, value));
    }

    /** Returns the plan for other classes, not more, in the memory of this one. */
    ChunkPlan withClasses(ShardRange classes) {
        int needed = Math.toIntExact((classes.length() + chunk - 1) / chunk);
        return new ChunkPlan(rows, classes, chunk, needed, Math.min(kept, needed));
    }

    long start(int index) {
        return range.start() + index * chunk;
    }

    long length(int index) {
        return Math.min(chunk, range.end() - start(index));
    }
}
