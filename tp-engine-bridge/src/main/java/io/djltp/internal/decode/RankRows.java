package io.djltp.internal.decode;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Tensor;
import org.jspecify.annotations.Nullable;

import java.nio.FloatBuffer;
import java.util.Arrays;

/** Rows in Java arrays that the ranks of a group add up, or put together. */
@SuppressWarnings("try") // a scope is used by being open
public final class RankRows implements AutoCloseable {

    private final Communicator group;
    private final @Nullable SharedRows shared;
    private long meetings; // there
    private long sums;
    private final RowBuffer own;
    private final RowBuffer gathered;
    private final long[] counts;
    private float[] few = {};

    /**
     * Creates a rank's end.
     *
     * @param group the group
     * @param shared where ranks of one process put small rows, or {@code null}
     * @param summed the most numbers that are summed at once
     * @param gathered the most numbers of a rank that are gathered at once
     */
    public RankRows(Communicator group, @Nullable SharedRows shared, long summed, long gathered) {
        this.group = group;
        this.shared = shared;
        counts = new long[group.getSize()];
        own = new RowBuffer(Math.max(summed, gathered));
        this.gathered = new RowBuffer(Math.max(1, gathered * counts.length));
    }

    /**
     * Adds up rows over the ranks, in the order of the ranks.
     *
     * @param x the rows, which become the sums
     * @param count how many numbers
     */
    public void sum(float[] x, int count) {
        if (counts.length == 1) {
            return;
        }
        sums++;
        if (shared != null && shared.hasRoom(count)) {
            System.arraycopy(x, 0, room(shared, count), 0, count);
            shared.sum(group.getRank(), meetings++, count, x);
            return;
        }
        own.memory().put(0, x, 0, count);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            group.allReduce(TensorView.of(own.view(1, count)), ReduceOp.SUM).await();
        }
        own.memory().get(0, x, 0, count);
    }

    /** Adds up the numbers of a contiguous tensor over the ranks, in the order of the ranks. */
    void sum(Tensor x) {
        if (counts.length == 1) {
            return;
        }
        sums++;
        int count = Math.toIntExact(x.numel());
        if (shared != null && shared.hasRoom(count)) {
            if (few.length < count) {
                few = new float[count];
            }
            FloatBuffer memory = RowBuffer.memoryOf(x);
            memory.get(0, room(shared, count), 0, count);
            shared.sum(group.getRank(), meetings++, count, few);
            memory.put(0, few, 0, count);
        } else {
            group.allReduce(TensorView.of(x), ReduceOp.SUM).await();
        }
    }

    private float[] room(SharedRows place, int count) {
        return place.room(group.getRank(), meetings, count);
    }

    /**
     * Returns how many sums there were.
     *
     * @return the number of sums over several ranks
     */
    public long getSums() {
        return sums;
    }

    /**
     * Puts numbers of all ranks one after another.
     *
     * @param x the numbers of this rank
     * @param count how many, the same on all ranks
     * @param all where those of all go, in the order of the ranks
     */
    public void gather(float[] x, int count, float[] all) {
        if (counts.length == 1) {
            System.arraycopy(x, 0, all, 0, count);
            return;
        }
        if (shared != null && shared.hasRoom(count)) {
            System.arraycopy(x, 0, room(shared, count), 0, count);
            shared.gather(group.getRank(), meetings++, count, all);
            return;
        }
        Arrays.fill(counts, count);
        own.memory().put(0, x, 0, count);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            TensorView from = TensorView.of(own.view(1, count));
            TensorView to = TensorView.of(gathered.view(counts.length, count));
            group.allGather(from, to, counts).await();
        }
        gathered.memory().get(0, all, 0, count * counts.length);
    }

    /** Frees the memory. */
    @Override
    public void close() {
        own.close();
        gathered.close();
    }
}
