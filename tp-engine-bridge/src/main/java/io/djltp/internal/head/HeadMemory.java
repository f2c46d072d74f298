package io.djltp.internal.head;

import io.djltp.cut.Cut;
import io.djltp.internal.Errors;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.OpenMpTeam;
import io.djltp.torch.Precision;

import org.bytedeco.pytorch.Tensor;
import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.List;
import java.util.function.IntConsumer;
import java.util.function.LongUnaryOperator;

/**
 * What the passes of a fused cross entropy work with: the worker threads, the memory that they
 * share, and that which each of them has alone.
 */
final class HeadMemory implements AutoCloseable {

    private final long budget;
    private final long chunk;
    private final Precision precision;
    private final boolean keeps;
    private @Nullable WorkerThreads threads;
    private @Nullable ChunkMemory shared;
    private int bytes; // of an exponential that is kept
    private long capacity; // in classes
    private long leastRows; // that are planned for
    private final List<ChunkMemory> ofWorkers = new ArrayList<>();

    /**
     * Prepares nothing yet.
     *
     * @param budget the bytes that logits may take
     * @param chunk the classes of a chunk, or 0 for what suits the device
     * @param precision the arithmetic
     * @param keeps whether anything of a chunk is kept for a second pass
     */
    HeadMemory(long budget, long chunk, Precision precision, boolean keeps) {
        this.keeps = keeps;
        this.budget = budget;
        this.chunk = chunk;
        this.precision = precision;
    }

    /**
     * Prepares memory for a batch, which is taken when it is first used.
     *
     * @param x the features, [rows, features]
     * @param rows the rows that are computed with
     * @param keptBytes the bytes of an exponential that is kept
     * @param classes returns the most classes of a step of so many rows
     * @param wanted the classes of this step
     */
    void prepare(Tensor x, long rows, int keptBytes, LongUnaryOperator classes, long wanted) {
        boolean gpu = x.is_cuda();
        int count = gpu ? 1 : Autograd.getThreads();
        if (threads == null || threads.count() != count) {
            setLeastRows(plannedRows());
            if (threads != null) {
                threads.close();
            }
            threads = new WorkerThreads(count, count > 1 ? OpenMpTeam.create().orElse(null) : null);
        }
        long features = x.size(1);
        if (shared == null
                || !shared.fits(rows, features)
                || keptBytes != bytes
                || wanted > capacity) {
            long planned = Math.max(rows, Math.max(leastRows, plannedRows()));
            long most = Math.max(wanted, classes.applyAsLong(planned));
            capacity = most;
            ChunkPlan[] plans =
                    ChunkPlan.of(
                            planned,
                            features,
                            most,
                            chunk,
                            budget,
                            keptBytes,
                            threads.count(),
                            gpu);
            freeBuffers();
            bytes = keptBytes;
            shared = new ChunkMemory(plans[0], features, x, precision);
            for (ChunkPlan plan : plans) {
                ChunkPlan own = keeps ? plan : plan.withoutKept();
                ofWorkers.add(new ChunkMemory(own, features, x, precision));
            }
        }
        setRows(rows);
    }

    /**
     * Returns the rows that were planned for: of the largest batch so far. How long chunks are, and
     * with it how sums are rounded, follows from them.
     */
    long plannedRows() {
        return shared == null ? leastRows : shared.plan().rows();
    }

    /** Sets the rows that are planned for at least. */
    void setLeastRows(long rows) {
        leastRows = rows;
        freeBuffers();
    }

    ChunkMemory shared() {
        return prepared(shared);
    }

    private static <T> T prepared(@Nullable T part) {
        return Errors.present(part, "There is no memory: call prepare first");
    }

    List<ChunkMemory> ofWorkers() {
        return ofWorkers;
    }

    /** Returns the number of threads. */
    int threads() {
        return prepared(threads).count();
    }

    /** Runs tasks side by side, see {@link WorkerThreads#run}. */
    void run(int tasks, IntConsumer task) {
        prepared(threads).run(tasks, task);
    }

    /** Returns how many classes are computed with. */
    long classes() {
        return ofWorkers.stream().mapToLong(each -> each.plan().range().length()).sum();
    }

    /** Sets how many classes are computed with, not more than {@link #prepare} was told. */
    void setClasses(long classes) {
        Cut cut = Cut.balanced(classes, ofWorkers.size());
        for (int i = 0; i < ofWorkers.size(); i++) {
            ofWorkers.get(i).setClasses(cut.getRange(i));
        }
    }

    /** Sets the rows of the batch. */
    void setRows(long rows) {
        shared().setRows(rows);
        ofWorkers.forEach(each -> each.setRows(rows));
    }

    private void freeBuffers() {
        if (shared != null) {
            shared.close();
            shared = null;
        }
        ofWorkers.forEach(ChunkMemory::close);
        ofWorkers.clear();
    }

    /** Ends the threads and frees the memory. */
    @Override
    public void close() {
        if (threads != null) {
            threads.close();
            threads = null;
        }
        freeBuffers();
    }
}
