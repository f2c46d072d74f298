package io.djltp.head;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;

/**
 * How the classes of a worker thread are cut into chunks, and the exponentials of how many chunks
 * are kept from the pass that computes the loss to the one that updates the weights.
 *
 * @param rows the rows of the batch
 * @param range the classes of the thread, counted from the first class of the rank
 * @param chunk the classes of a chunk; the last chunk may have fewer
 * @param count the number of chunks
 * @param kept the number of chunks, from the first, whose exponentials are kept
 */
record ChunkPlan(long rows, ShardRange range, long chunk, int count, int kept) {

    /**
     * Plans the chunks of the worker threads of a rank. There are fewer threads than wanted if
     * there are not classes or memory enough.
     *
     * @param rows the rows of the batch
     * @param features the length of a row of features
     * @param classes the classes of the rank
     * @param wanted the classes of a chunk, or 0 for what suits the device
     * @param budget the bytes that logits may take on the rank
     * @param keptBytes the bytes of an exponential that is kept: 4, or 2 in 16 bits
     * @param threads the number of threads that are wanted
     * @param gpu whether the device is a GPU
     * @return the plan of each thread
     * @throws IllegalArgumentException if not one chunk fits in
     */
    static ChunkPlan[] of(
            long rows,
            long features,
            long classes,
            long wanted,
            long budget,
            int keptBytes,
            int threads,
            boolean gpu) {
        boolean rounded = keptBytes < Float.BYTES;
        long size = wanted == 0 ? ChunkSize.training(rows, features, budget, rounded, gpu) : wanted;
        long chunk = Math.max(1, Math.min(size, classes));
        long kept = Math.max(1, rows) * chunk * keptBytes;
        // one that is not kept: its logits in float32, which become its exponentials or are rounded
        long bytes = Math.max(1, rows) * chunk * Float.BYTES + (rounded ? kept : 0);
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
        int count = (int) Math.max(1, Math.min(Math.min(threads, budget / bytes), chunks));
        ChunkPlan[] plans = new ChunkPlan[count];
        for (int i = 0; i < count; i++) {
            ShardRange range = Cut.balanced(classes, count).getRange(i);
            plans[i] = of(rows, range, chunk, (budget / count - bytes) / kept);
        }
        return plans;
    }

    private static ChunkPlan of(long rows, ShardRange range, long chunk, long places) {
        int count = Math.toIntExact((range.length() + chunk - 1) / chunk);
        return new ChunkPlan(rows, range, chunk, count, (int) Math.min(count, places));
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
