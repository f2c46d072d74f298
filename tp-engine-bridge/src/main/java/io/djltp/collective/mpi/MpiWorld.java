package io.djltp.collective.mpi;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.GroupFailure;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;

/**
 * All processes that {@code mpirun} or Slurm has started, as MPI knows them; a process that was
 * started alone is a world of one.
 *
 * <p>A process can start and end MPI once. MPI is ended by {@link #close()}, and only if nothing
 * has failed: a process that exits otherwise makes {@code mpirun} stop all others, which is then
 * wanted.
 *
 * <p>By default {@code mpirun} binds each process to one core, on which libtorch computes with one
 * thread: start it with {@code --bind-to none} or with cores for each process ({@code --map-by
 * slot:PE=8}).
 */
public final class MpiWorld implements AutoCloseable {

    /** How long {@link #broadcast(byte[])} waits for the other processes. */
    public static final Duration DEFAULT_TIMEOUT = Duration.ofMinutes(5);

    private static final Logger logger = LoggerFactory.getLogger(MpiWorld.class);

    /** What MPI may still read or write: never freed. */
    private static final List<Object> KEPT = new ArrayList<>();

    private static MpiWorld instance;

    private final MpiLibrary library;
    private final long handle;
    private final boolean started; // by this class, and not by somebody else in the process
    private final int rank;
    private final int size;
    private boolean stuck; // MPI waits for a process that has not come
    private final AtomicInteger open = new AtomicInteger(); // communicators
    private final AtomicReference<String> unclean = new AtomicReference<>(); // why not to end MPI
    private boolean closed;

    private MpiWorld(MpiLibrary library) {
        this.library = library;
        handle = library.handle("ompi_mpi_comm_world");
        try (Memory memory = new Memory(Integer.BYTES)) {
            long address = Pointer.nativeValue(memory);
            started = MpiInit.run(memory, address);
            check(MpiFunctions.MPI_Comm_rank(handle, address), "MPI_Comm_rank");
            rank = memory.getInt(0);
            check(MpiFunctions.MPI_Comm_size(handle, address), "MPI_Comm_size");
            size = memory.getInt(0);
        }
        returnErrors(handle);
        logger.debug("process {} of {}, {}", rank, size, MpiLibrary.version());
    }

    /**
     * Starts MPI, unless that was done before in this process.
     *
     * @return the world
     * @throws CollectiveException if there is no Open MPI, it has been ended before, or does not
     *     support threads
     */
    public static synchronized MpiWorld start() {
        if (instance == null) {
            instance = new MpiWorld(MpiLibrary.load());
        }
        if (instance.closed) {
            throw ended();
        }
        return instance;
    }

    static CollectiveException ended() {
        return new CollectiveException(
                "MPI was ended in this process and cannot start again: keep the MpiWorld open until"
                        + " the process ends.");
    }

    private static void check(int code, String function) {
        MpiLibrary.check(code, function);
    }

    /**
     * Makes MPI report errors in a communicator, and not end the process.
     *
     * @param comm the handle of the communicator
     */
    void returnErrors(long comm) {
        check(
                MpiFunctions.MPI_Comm_set_errhandler(
                        comm, library.handle("ompi_mpi_errors_return")),
                "MPI_Comm_set_errhandler");
    }

    MpiLibrary getLibrary() {
        return library;
    }

    /**
     * Returns the number of this process.
     *
     * @return the number, from 0
     */
    public int getRank() {
        return rank;
    }

    /**
     * Returns the number of processes.
     *
     * @return the number of processes
     */
    public int getSize() {
        return size;
    }

    /**
     * Sends a message of process 0 to all processes, with the default time-out. All processes call
     * it.
     *
     * @param message the message; ignored, and may be {@code null}, on the others
     * @return the message of process 0
     * @throws CollectiveException if a process does not come in time
     */
    public byte[] broadcast(byte[] message) {
        return broadcast(message, DEFAULT_TIMEOUT);
    }

    /**
     * Sends a message of process 0 to all processes. All processes call it.
     *
     * @param message the message; ignored, and may be {@code null}, on the others
     * @param timeout how long to wait for the others
     * @return the message of process 0
     * @throws CollectiveException if a process does not come in time
     */
    public synchronized byte[] broadcast(byte[] message, Duration timeout) {
        MpiPoller poller =
                poller("the broadcast of a message from process 0", timeout, new GroupFailure());
        Memory length = new Memory(Integer.BYTES);
        length.setInt(0, message == null ? 0 : message.length);
        broadcast(poller, length, Integer.BYTES);
        int bytes = length.getInt(0);
        Memory text = new Memory(Math.max(1, bytes));
        if (rank == 0 && bytes > 0) {
            text.write(0, message, 0, bytes);
        }
        broadcast(poller, text, bytes);
        return text.getByteArray(0, bytes);
    }

    private void broadcast(MpiPoller poller, Memory memory, int bytes) {
        await(
                poller,
                memory,
                () ->
                        MpiFunctions.MPI_Ibcast(
                                Pointer.nativeValue(memory),
                                bytes,
                                library.handle("ompi_mpi_byte"),
                                0,
                                handle,
                                poller.request()),
                "MPI_Ibcast");
    }

    /** A call of a function that begins a request. */
    private interface Call {
        int run();
    }

    private void await(MpiPoller poller, Memory memory, Call call, String function) {
        try {
            poller.await(call.run(), function);
        } finally {
            if (poller.isPending()) {
                stuck = true;
                keep(memory, poller);
                setUnclean("a process did not come");
            }
        }
    }

    /**
     * Makes a communicator of all processes.
     *
     * @param timeout how long to wait for the others
     * @param failure ends the wait
     * @return its handle
     */
    synchronized long duplicate(Duration timeout, GroupFailure failure) {
        MpiPoller poller = poller("the creation of a communicator", timeout, failure);
        Memory copy = new Memory(Long.BYTES);
        long address = Pointer.nativeValue(copy);
        await(
                poller,
                copy,
                () -> MpiFunctions.MPI_Comm_idup(handle, address, poller.request()),
                "MPI_Comm_idup");
        open.incrementAndGet();
        return copy.getLong(0);
    }

    private MpiPoller poller(String what, Duration timeout, GroupFailure failure) {
        if (closed) {
            throw ended();
        }
        if (stuck) {
            throw new CollectiveException(
                    "MPI is of no use in this process any more, because "
                            + unclean.get()
                            + ": end all processes and start them again.");
        }
        MpiPoller poller = new MpiPoller(failure, rank, size);
        poller.begin(what, timeout);
        return poller;
    }

    /** Notes that a communicator was freed. */
    void released() {
        open.decrementAndGet();
    }

    /**
     * Notes that MPI must not be ended by this process.
     *
     * @param reason why
     */
    void setUnclean(String reason) {
        unclean.compareAndSet(null, reason);
    }

    /**
     * Keeps what MPI may still use until the process ends.
     *
     * @param objects tensors and native memory
     */
    static void keep(Object... objects) {
        synchronized (KEPT) {
            KEPT.addAll(List.of(objects));
        }
    }

    /**
     * Ends MPI, if all communicators were closed and nothing has failed. May wait for the other
     * processes to do the same, see {@link MpiEnd}.
     */
    @Override
    public synchronized void close() {
        if (closed) {
            return;
        }
        closed = true;
        if (open.get() > 0) {
            setUnclean("a communicator is open");
        }
        String reason = unclean.get();
        if (reason != null) {
            logger.warn("MPI is left as it is, because {}", reason);
        } else if (started) {
            check(MpiFunctions.MPI_Finalize(), "MPI_Finalize");
        }
    }
}
