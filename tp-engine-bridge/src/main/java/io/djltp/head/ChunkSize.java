package io.djltp.head;

/** How many classes a chunk has, if nothing else is said. */
final class ChunkSize {

    /**
     * The bytes that weights and logits of a chunk take together in training on a CPU: few enough
     * to stay in the cache of one core from one operation to the next.
     */
    private static final long TRAINING_BYTES = 1L << 20;

    /**
     * The same of what a chunk has in training in 16 bits: rounded weights, logits, and rounded
     * exponentials. More than the cache of a core: products of 16 bits are that much faster that
     * what each call costs, and short sums, show first. Measured with 64 and 256 rows.
     */
    private static final long ROUNDED_BYTES = 4L << 20;

    /**
     * The bytes that the logits of a chunk take in evaluation on a CPU, where all threads share an
     * operation: few enough for the caches, where they are read several times, and enough for the
     * threads not to wait for each other for longer than they compute. Each weight is read once,
     * and need not stay there, unless it is copied.
     */
    private static final long EVALUATION_BYTES = 4L << 20;

    /** A GPU needs enough work for each of its kernels instead. */
    private static final long GPU_BYTES = 256L << 20;

    private static final long SMALLEST = 256;

    private ChunkSize() {}

    /**
     * Returns the classes of a chunk in training.
     *
     * @param rows the rows of the batch
     * @param features the length of a row of features
     * @param budget the bytes that logits may take
     * @param rounded whether exponentials are kept in 16 bits
     * @param gpu whether the device is a GPU
     */
    static long training(long rows, long features, long budget, boolean rounded, boolean gpu) {
        long ofLogit = Float.BYTES + (rounded ? Short.BYTES : 0);
        long ofClass = ofLogit * rows + (rounded ? Short.BYTES : Float.BYTES) * features;
        long fitting = (gpu ? GPU_BYTES : rounded ? ROUNDED_BYTES : TRAINING_BYTES) / ofClass;
        long affordable = budget / (ofLogit * Math.max(1, rows));
        return powerOfTwo(Math.min(fitting, affordable));
    }

    /**
     * Returns the classes of a chunk in evaluation.
     *
     * @param rows the rows of the batch
     * @param copied the length of a row of the weight if it is copied, or 0
     * @param budget the bytes that logits may take
     * @param gpu whether the device is a GPU
     */
    static long evaluation(long rows, long copied, long budget, boolean gpu) {
        long fitting = (gpu ? GPU_BYTES : EVALUATION_BYTES) / (Float.BYTES * (rows + copied));
        return Math.max(1, Math.min(powerOfTwo(fitting), budget / (Float.BYTES * rows)));
    }

    private static long powerOfTwo(long atMost) {
        return Math.max(SMALLEST, Long.highestOneBit(Math.max(1, atMost)));
    }
}
