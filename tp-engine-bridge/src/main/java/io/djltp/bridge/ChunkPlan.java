package io.djltp.bridge;

/**
 * How the classes of a rank are cut into chunks, and the exponentials of how many chunks are kept
 * from the pass that computes the loss to the one that updates the weights.
 *
 * @param rows the rows of the logits
 * @param classes the classes of the rank
 * @param chunk the classes of a chunk; the last chunk may have fewer
 * @param count the number of chunks
 * @param kept the number of chunks, from the first, whose exponentials are kept
 */
record ChunkPlan(long rows, long classes, long chunk, int count, int kept) {

    /**
     * The bytes that weights and logits of a chunk take together on a CPU: few enough to stay in
     * its caches, and enough for the threads of an operation not to wait for each other for longer
     * than they compute.
     */
    private static final long CPU_BYTES = 8L << 20;

    /** A GPU needs enough work for each of its kernels instead. */
    private static final long GPU_BYTES = 256L << 20;

    private static final long SMALLEST = 256;

    /**
     * Plans chunks.
     *
     * @param rows the rows of the logits
     * @param features the length of a row of features
     * @param classes the classes of the rank
     * @param wanted the classes of a chunk, or 0 for what suits the device
     * @param budget the bytes that logits may take
     * @param gpu whether the device is a GPU
     * @return the plan
     * @throws IllegalArgumentException if not one chunk fits in
     */
    static ChunkPlan of(
            long rows, long features, long classes, long wanted, long budget, boolean gpu) {
        long size = wanted;
        if (size == 0) {
            long fitting = (gpu ? GPU_BYTES : CPU_BYTES) / (Float.BYTES * (rows + features));
            size = Math.max(SMALLEST, Long.highestOneBit(Math.max(1, fitting)));
        }
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
                            + " bytes");
        }
        int count = Math.toIntExact((classes + chunk - 1) / chunk);
        long kept = Math.min(count, budget / bytes - 1); // one is for those that are not kept
        return new ChunkPlan(rows, classes, chunk, count, (int) kept);
    }

    /** Returns the plan for fewer classes, in the memory of this one. */
    ChunkPlan withClasses(long fewer) {
        int needed = Math.toIntExact((fewer + chunk - 1) / chunk);
        return new ChunkPlan(rows, fewer, chunk, needed, Math.min(kept, needed));
    }

    long start(int index) {
        return index * chunk;
    }

    long length(int index) {
        return Math.min(chunk, classes - start(index));
    }
}
