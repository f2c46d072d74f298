package io.djltp.collective.mpi;

import ai.djl.ndarray.types.DataType;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;

import io.djltp.collective.ReduceOp;

import java.util.Arrays;

/**
 * The operations of MPI on host memory of any size. MPI counts elements in an {@code int}: what is
 * larger is cut into pieces, in the same way on all ranks.
 *
 * <p>Every operation is begun and then waited for, so that the native memory for counts is used
 * again and again.
 */
final class MpiTransfers {

    private final MpiLibrary library;
    private final MpiPoller poller;
    private final long comm;
    private final int rank;
    private final int size;
    private final long limit;
    private final Memory memory; // counts and starts of what is sent, and of what is received
    private final long address;
    private DataType type;
    private long handle; // of the type

    /**
     * Creates the operations of a group.
     *
     * @param library the library
     * @param poller waits for them
     * @param comm the handle of the communicator
     * @param rank this rank
     * @param size the number of ranks
     * @param limit how many elements one operation of MPI may have
     */
    MpiTransfers(MpiLibrary library, MpiPoller poller, long comm, int rank, int size, long limit) {
        this.library = library;
        this.poller = poller;
        this.comm = comm;
        this.rank = rank;
        this.size = size;
        this.limit = limit;
        memory = new Memory(4L * size * Integer.BYTES);
        address = Pointer.nativeValue(memory);
        of(DataType.INT64);
    }

    int getRank() {
        return rank;
    }

    int getSize() {
        return size;
    }

    /**
     * Sets the type of the elements.
     *
     * @param dataType the data type
     * @return this
     */
    MpiTransfers of(DataType dataType) {
        if (dataType != type) {
            type = dataType;
            handle = library.type(dataType);
        }
        return this;
    }

    /** Waits until all ranks have come. */
    void barrier() {
        poller.await(MpiFunctions.MPI_Ibarrier(comm, poller.request()), "MPI_Ibarrier");
    }

    /** Replaces elements by one rank's. */
    void broadcast(long buffer, long count, int root) {
        for (long done = 0; done < count; done += limit) {
            int piece = piece(count, done);
            poller.await(
                    MpiFunctions.MPI_Ibcast(
                            bytes(buffer, done), piece, handle, root, comm, poller.request()),
                    "MPI_Ibcast",
                    bytes(0, piece));
        }
    }

    /** Replaces elements, few enough for one operation, by their reduction over all ranks. */
    void allReduce(long buffer, long count, ReduceOp op) {
        poller.await(
                MpiFunctions.MPI_Iallreduce(
                        MpiLibrary.IN_PLACE,
                        buffer,
                        (int) count,
                        handle,
                        library.op(op),
                        comm,
                        poller.request()),
                "MPI_Iallreduce",
                bytes(0, count));
    }

    /**
     * Gathers as many elements of each rank, few enough for one operation.
     *
     * @param input where this rank's are, or {@link MpiLibrary#IN_PLACE} on all ranks
     */
    void allGather(long input, long output, long count) {
        poller.await(
                MpiFunctions.MPI_Iallgather(
                        input,
                        (int) count,
                        handle,
                        output,
                        (int) count,
                        handle,
                        comm,
                        poller.request()),
                "MPI_Iallgather",
                bytes(0, count * size));
    }

    /**
     * Returns whether shares are too large for one operation.
     *
     * @param total the number of elements of all of them
     * @return whether they are to be cut
     */
    boolean isLarge(long total) {
        return total > limit;
    }

    /** Gathers the shares of all ranks, each of which lies in its place on its rank. */
    void allGather(long buffer, long[] shares) {
        long total = sum(shares);
        if (isLarge(total)) {
            for (int i = 0; i < size; i++) {
                broadcast(bytes(buffer, sum(shares, i)), shares[i], i);
            }
        } else if (total > 0) {
            write(0, shares);
            poller.await(
                    MpiFunctions.MPI_Iallgatherv(
                            MpiLibrary.IN_PLACE,
                            0,
                            handle,
                            buffer,
                            array(0),
                            array(1),
                            handle,
                            comm,
                            poller.request()),
                    "MPI_Iallgatherv",
                    bytes(0, total));
        }
    }

    /**
     * Sends a share to every rank and receives one from each.
     *
     * @param largest the elements of the largest share between any two ranks
     * @param total the elements that a rank sends or receives at most; the same on all ranks, as
     *     {@code largest} is
     */
    void allToAll(long input, long output, long[] sent, long[] received, long largest, long total) {
        if (!isLarge(total)) {
            write(0, sent);
            write(2, received);
            allToAll(input, output, total);
            return;
        }
        for (int distance = 0; distance < size; distance++) {
            int to = (rank + distance) % size;
            int from = (rank - distance + size) % size;
            long source = bytes(input, sum(sent, to));
            long target = bytes(output, sum(received, from));
            for (long done = 0; done < largest; done += limit) {
                write(0, only(to, piece(sent[to], done)));
                write(2, only(from, piece(received[from], done)));
                allToAll(bytes(source, done), bytes(target, done), piece(largest, done));
            }
        }
    }

    private void allToAll(long input, long output, long most) {
        poller.await(
                MpiFunctions.MPI_Ialltoallv(
                        input,
                        array(0),
                        array(1),
                        handle,
                        output,
                        array(2),
                        array(3),
                        handle,
                        comm,
                        poller.request()),
                "MPI_Ialltoallv",
                bytes(0, most));
    }

    private long[] only(int peer, int count) {
        long[] counts = new long[size];
        counts[peer] = count;
        return counts;
    }

    private int piece(long count, long done) {
        return (int) Math.max(0, Math.min(limit, count - done));
    }

    private long bytes(long start, long elements) {
        return start + elements * type.getNumOfBytes();
    }

    private long array(int index) {
        return address + (long) index * size * Integer.BYTES;
    }

    /** Writes counts, and after them where each share starts. */
    private void write(int index, long[] counts) {
        int start = 0;
        for (int i = 0; i < size; i++) {
            memory.setInt((long) (index * size + i) * Integer.BYTES, (int) counts[i]);
            memory.setInt((long) ((index + 1) * size + i) * Integer.BYTES, start);
            start += (int) counts[i];
        }
    }

    private static long sum(long[] shares) {
        return sum(shares, shares.length);
    }

    private static long sum(long[] shares, int end) {
        return Arrays.stream(shares, 0, end).sum();
    }
}
