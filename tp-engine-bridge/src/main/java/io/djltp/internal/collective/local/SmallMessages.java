package io.djltp.internal.collective.local;

import ai.djl.ndarray.types.DataType;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveCall;
import io.djltp.collective.ReduceOp;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.javacpp.Pointer;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
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
    private final SmallSums sums = new SmallSums();

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
    boolean take(CollectiveCall call) {
        Collective kind = call.getCollective();
        if (mailboxes.length == 1 || kind == Collective.BARRIER || kind == Collective.ALL_TO_ALL) {
            return false;
        }
        DataType type = call.getDataType();
        boolean adds = type == DataType.FLOAT32 || type == DataType.FLOAT64;
        long bytes = call.getPayload();
        return bytes > 0 && bytes * mailboxes.length <= MOST_READ && (adds || call.getOp() == null);
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
            case ALL_REDUCE:
                reduce(call, 0, call.getInput().size());
                break;
            case REDUCE_SCATTER:
                reduce(
                        call,
                        Arrays.stream(call.getShares(), 0, rank).sum(),
                        call.getShares()[rank]);
                break;
            case ALL_GATHER:
                gather(call);
                break;
            default: // a broadcast
                if (call.getRoot() != rank) {
                    take(call.getRoot(), tensor.of(call.getOutput(), 0), call.getBytes());
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

    private void reduce(CollectiveCall call, long start, long length) {
        int width = call.getDataType().getNumOfBytes();
        if (call.getDataType() == DataType.FLOAT32) {
            sums.reduceFloats(mailboxes, parity, (int) start, (int) length, call.getOp());
        } else {
            sums.reduceDoubles(mailboxes, parity, (int) start, (int) length, call.getOp());
        }
        copy(tensor.of(call.getOutput(), 0), sums.getResult(), length * width);
    }

    /** A place in a tensor, as an argument: one object for all calls. */
    private static final class Address extends Pointer {

        Address of(TensorView view, long bytes) {
            address = view.address() + bytes;
            return this;
        }
    }

    /**
     * The arithmetic of small reductions, of floats on Java's arrays, whose loops the virtual
     * machine vectorizes: each element is \(((x_0 + x_1) + x_2) + ...\) in the order of the ranks,
     * as in {@link BlockReduction}.
     */
    private static final class SmallSums {

        private float[] floats = new float[0];
        private float[] floatSum = new float[0];
        private ByteBuffer result = ByteBuffer.allocateDirect(0);
        private Pointer pointer;

        /** Returns where the result of the last reduction lies. */
        Pointer getResult() {
            return pointer;
        }

        /**
         * Reduces a range of the elements in all mailboxes.
         *
         * @param mailboxes what is reduced
         * @param parity which of the two places of each mailbox
         * @param start the first element of the range
         * @param length the number of elements
         * @param op the reduction
         */
        void reduceFloats(
                SmallMessages.Mailbox[] mailboxes, int parity, int start, int length, ReduceOp op) {
            if (floatSum.length < length) {
                floatSum = new float[length];
                floats = new float[length];
            }
            float[] sum = floatSum;
            mailboxes[0].place(parity).asFloatBuffer().get(start, sum, 0, length);
            for (int rank = 1; rank < mailboxes.length; rank++) {
                mailboxes[rank].place(parity).asFloatBuffer().get(start, floats, 0, length);
                add(sum, floats, length, op);
            }
            result(length * Float.BYTES).asFloatBuffer().put(0, sum, 0, length);
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
        void reduceDoubles(
                SmallMessages.Mailbox[] mailboxes, int parity, int start, int length, ReduceOp op) {
            ByteBuffer sums = result(length * Double.BYTES);
            for (int i = 0; i < length; i++) {
                int place = (start + i) * Double.BYTES;
                double sum = mailboxes[0].place(parity).getDouble(place);
                for (int rank = 1; rank < mailboxes.length; rank++) {
                    sum = add(sum, mailboxes[rank].place(parity).getDouble(place), op);
                }
                sums.putDouble(i * Double.BYTES, sum);
            }
        }

        private static double add(double sum, double more, ReduceOp op) {
            if (op == ReduceOp.SUM) {
                return sum + more;
            }
            return op == ReduceOp.MAX ? Math.max(sum, more) : Math.min(sum, more);
        }

        private ByteBuffer result(int bytes) {
            if (pointer == null || result.capacity() < bytes) {
                result =
                        ByteBuffer.allocateDirect(Math.max(bytes, 1))
                                .order(ByteOrder.nativeOrder());
                pointer = new BytePointer(result);
            }
            return result;
        }
    }
}
