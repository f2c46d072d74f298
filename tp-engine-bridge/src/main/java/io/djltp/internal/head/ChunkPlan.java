package io.djltp.internal.head;

import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;
import io.djltp.internal.torch.OneDnnLinear;

import org.bytedeco.pytorch.Tensor;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

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
     * The bytes that weights and logits of a chunk take together in training on a CPU: twice the
     * second cache of a core, of 512 KiB to 1 MiB. Most of it stays there from one operation to the
     * next, and there are half as many calls as if all of it did. With oneDNN, whose calls cost
     * more, it is twice as much.
     */
    private static final long TRAINING_BYTES =
            (OneDnnLinear.isUsed() ? 4 : 2) * secondCache(512L << 10, 1L << 20);

    /**
     * The same of what a chunk has in training in 16 bits: rounded weights, logits, and rounded
     * exponentials. More than the cache of a core: with faster products the fixed cost of a call
     * weighs more. Measured with 64 and 256 rows.
     */
    private static final long ROUNDED_BYTES = 4L << 20;

    /**
     * The bytes that the logits of a chunk take in evaluation on a CPU, where all threads share an
     * operation: few enough for the caches, where they are read several times, and enough for the
     * threads not to wait for each other for longer than they compute. Each weight is read once,
     * and need not stay there, unless it is copied.
     */
    private static final long EVALUATION_BYTES = 4L << 20;

    /**
     * The bytes that the logits of a chunk take on a GPU: enough work for each of its kernels, and
     * a part of a second-level cache of 40 to 60 MB, where the operations after one another find
     * them. Computed, not measured.
     */
    private static final long GPU_BYTES = 16L << 20;

    private static final long SMALLEST = 256;

    private static long secondCache(long least, long most) {
        try {
            Path size = Path.of("/sys/devices/system/cpu/cpu0/cache/index2/size"); // such as 1024K
            String text = Files.readString(size).strip();
            long kibibytes = Long.parseLong(text.substring(0, text.length() - 1));
            return Math.max(least, Math.min(most, kibibytes << 10));
        } catch (IOException | RuntimeException e) {
            return least; // not Linux, or not told
        }
    }

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
        long size = wanted == 0 ? trainingSize(rows, features, budget, rounded, gpu) : wanted;
        long chunk = Math.max(1, Math.min(size, classes));
        long kept = Math.max(1, rows) * chunk * keptBytes;
        // one that is not kept: its logits in float32, which become its exponentials or are rounded
        long bytes = Math.max(1, rows) * chunk * Float.BYTES + (rounded ? kept : 0);
        if (bytes > budget) {
            throw Errors.argument(
                    "A memory budget of %s bytes is too small for the logits of one chunk: %s rows"
                            + " of %s classes take %s bytes. Use optFusedMemory(%s) or more, or a"
                            + " smaller batch",
                    budget, rows, chunk, bytes, bytes);
        }
        long chunks = (classes + chunk - 1) / chunk;
        int count = (int) Math.max(1, Math.min(Math.min(threads, budget / bytes), chunks));
        ChunkPlan[] plans = new ChunkPlan[count];
        for (int i = 0; i < count; i++) {
            ShardRange range = ShardRange.balanced(classes, i, count);
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
        return of(rows, classes, chunk, kept);
    }

    /** Returns the plan of a single pass. */
    ChunkPlan withoutKept() {
        return new ChunkPlan(rows, range, chunk, count, 0);
    }

    long start(int index) {
        return range.start() + index * chunk;
    }

    long length(int index) {
        return Math.min(chunk, range.end() - start(index));
    }

    /** Returns the part of a chunk of what there is one of, or a row, for each class. */
    Tensor part(Tensor ofClasses, int index) {
        return ofClasses.narrow(0, start(index), length(index));
    }

    /**
     * Returns the classes of a chunk in training.
     *
     * @param rows the rows of the batch
     * @param features the length of a row of features
     * @param budget the bytes that logits may take
     * @param rounded whether exponentials are kept in 16 bits
     * @param gpu whether the device is a GPU
     */
    private static long trainingSize(
            long rows, long features, long budget, boolean rounded, boolean gpu) {
        long ofLogit = Float.BYTES + (rounded ? Short.BYTES : 0);
        long ofClass = ofLogit * rows + (rounded ? Short.BYTES : Float.BYTES) * features;
        long fitting =
                gpu
                        ? GPU_BYTES / (Float.BYTES * Math.max(1, rows))
                        : (rounded ? ROUNDED_BYTES : TRAINING_BYTES) / ofClass;
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
    static long evaluationSize(long rows, long copied, long budget, boolean gpu) {
        long fitting = (gpu ? GPU_BYTES : EVALUATION_BYTES) / (Float.BYTES * (rows + copied));
        return Math.max(1, Math.min(powerOfTwo(fitting), budget / (Float.BYTES * rows)));
    }

    private static long powerOfTwo(long atMost) {
        return Math.max(SMALLEST, Long.highestOneBit(Math.max(1, atMost)));
    }
}
