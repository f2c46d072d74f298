package io.djltp.internal.collective.local;

import ai.djl.ndarray.types.DataType;

import io.djltp.collective.Collective;
import io.djltp.collective.ReduceOp;
import io.djltp.internal.collective.CollectiveCall;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.javacpp.DoublePointer;
import org.bytedeco.javacpp.FloatPointer;
import org.bytedeco.javacpp.Pointer;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.Arrays;

/**
 * Small operations of one rank: it copies what it puts in into its mailbox, meets the others, and
 * computes the whole result from all mailboxes, in the order of the ranks.
 *
 * <p>That is more arithmetic than if every rank did its part, but one meeting instead of two, and
 * no call of libtorch: for some kilobytes these take most of the time. A mailbox has two places,
 * used in turn. What a rank puts there in an operation is read by the others before they come to
 * the next meeting, and it is overwritten only after that one.
 */
final class SmallMessages {

    /** What all ranks read in an operation, at most: then the others' way is faster. */
    private static final long MOST_READ = 1 << 16;

    private final int rank;
    private final Mailbox[] mailboxes;
    private final Address tensor = new Address();
    private int parity;
    private float[] floats = new float[0];
    private float[] floatSum = new float[0];

    /**
     * Creates a rank's end.
     *
     * @param rank the rank
     * @param mailboxes those of all ranks, where it puts its own
     */
    SmallMessages(int rank, Mailbox[] mailboxes) {
        this.rank = rank;
        this.mailboxes = mailboxes;
    }

    /** Memory of a rank that the others read. */
    static final class Mailbox {

        private final ByteBuffer[] places = new ByteBuffer[2]; // keep the memory, too
        private final Pointer[] pointers = new Pointer[2];

        Mailbox(int bytes) {
            for (int i = 0; i < places.length; i++) {
                places[i] = ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder());
                pointers[i] = new BytePointer(places[i]);
            }
        }

        ByteBuffer place(int parity) {
            return places[parity];
        }

        Pointer pointer(int parity) {
            return pointers[parity];
        }
    }

    /** Returns whether an operation is small, which all ranks find alike if they agree on it. */
    boolean isSmall(CollectiveCall call) {
        Collective kind = call.getCollective();
        if (mailboxes.length == 1 || kind == Collective.BARRIER || kind == Collective.ALL_TO_ALL) {
            return false;
        }
        DataType type = call.getDataType();
        boolean adds = type == DataType.FLOAT32 || type == DataType.FLOAT64;
        long bytes = call.getPayload();
        return bytes > 0 && bytes * mailboxes.length <= MOST_READ && (adds || !call.isReduction());
    }

    /** Puts what the rank gives where the others read it, before they meet. */
    void put(CollectiveCall call) {
        if (mailboxes[rank] == null) {
            mailboxes[rank] = new Mailbox((int) (MOST_READ / mailboxes.length));
        }
        parity = 1 - parity;
        if (call.getRoot() < 0 || call.getRoot() == rank) {
            copy(mailboxes[rank].pointer(parity), tensor.of(call.getInput(), 0), call.getBytes());
        }
    }

    /** Makes the result of what all ranks have put there, once they have met. */
    void finish(CollectiveCall call) {
        switch (call.getCollective()) {
            case ALL_REDUCE -> reduce(call, 0, call.getInput().size());
            case REDUCE_SCATTER -> {
                long[] shares = call.getShares();
                reduce(call, Arrays.stream(shares, 0, rank).sum(), shares[rank]);
            }
            case ALL_GATHER -> gather(call);
            default -> { // a broadcast
                if (call.getRoot() != rank) {
                    take(call.getRoot(), tensor.of(call.getOutput(), 0), call.getBytes());
                }
            }
        }
    }

    private void gather(CollectiveCall call) {
        int width = call.getDataType().getNumOfBytes();
        long start = 0;
        for (int i = 0; i < mailboxes.length; i++) {
            long share = call.getShares()[i];
            take(i, tensor.of(call.getOutput(), start * width), share * width);
            start += share;
        }
    }

    private void take(int from, Pointer to, long bytes) {
        copy(to, mailboxes[from].pointer(parity), bytes);
    }

    private static void copy(Pointer to, Pointer from, long bytes) {
        if (bytes > 0) {
            Pointer.memcpy(to, from, bytes);
        }
    }

    /**
     * Reduces a range of the elements in all mailboxes: each element is \(((x_0 + x_1) + x_2) +
     * ...\) in the order of the ranks, as in {@link BlockReduction}.
     */
    private void reduce(CollectiveCall call, long start, long length) {
        if (length == 0) {
            return;
        }
        Pointer to = tensor.of(call.getOutput(), 0);
        if (call.getDataType() == DataType.FLOAT32) {
            reduceFloats(to, (int) start, (int) length, call.getOp());
        } else {
            reduceDoubles(to, (int) start, (int) length, call.getOp());
        }
    }

    /** Reduces floats on Java's arrays, whose loops the virtual machine vectorizes. */
    private void reduceFloats(Pointer to, int start, int length, ReduceOp op) {
        FloatBuffer[] from = new FloatBuffer[mailboxes.length];
        Arrays.setAll(from, i -> mailboxes[i].place(parity).asFloatBuffer());
        new FloatPointer(to).put(reduceFloats(from, start, length, op), 0, length);
    }

    /**
     * Reduces a range of floats, and returns the result, which is there until the next one: without
     * a call of libtorch for each of the ranks.
     */
    float[] reduceFloats(FloatBuffer[] from, int start, int length, ReduceOp op) {
        if (floatSum.length < length) {
            floatSum = new float[length];
            floats = new float[length];
        }
        from[0].get(start, floatSum, 0, length);
        for (int i = 1; i < from.length; i++) {
            from[i].get(start, floats, 0, length);
            add(floatSum, floats, length, op);
        }
        return floatSum;
    }

    private static void add(float[] sum, float[] more, int length, ReduceOp op) {
        if (op == ReduceOp.SUM) {
            for (int i = 0; i < length; i++) {
                sum[i] += more[i];
            }
        } else if (op == ReduceOp.MAX) {
            for (int i = 0; i < length; i++) {
                sum[i] = Math.max(sum[i], more[i]);
            }
        } else {
            for (int i = 0; i < length; i++) {
                sum[i] = Math.min(sum[i], more[i]);
            }
        }
    }

    /** Does the same with doubles, one by one: they are few, such as a sum of squares. */
    private void reduceDoubles(Pointer to, int start, int length, ReduceOp op) {
        double[] sums = new double[length];
        for (int i = 0; i < length; i++) {
            int place = (start + i) * Double.BYTES;
            double sum = mailboxes[0].place(parity).getDouble(place);
            for (int from = 1; from < mailboxes.length; from++) {
                double more = mailboxes[from].place(parity).getDouble(place);
                sum =
                        switch (op) {
                            case SUM -> sum + more;
                            case MAX -> Math.max(sum, more);
                            case MIN -> Math.min(sum, more);
                        };
            }
            sums[i] = sum;
        }
        new DoublePointer(to).put(sums, 0, length);
    }

    /** A place in a tensor, as an argument: one object for all calls. */
    private static final class Address extends Pointer {

        Address of(TensorView view, long bytes) {
            address = view.address() + bytes;
            return this;
        }
    }
}
