package io.djltp.collective.mpi;

import com.sun.jna.Memory;

import io.djltp.collective.CollectiveException;

/** The start of MPI in this process, with threads that may all call it. */
final class MpiInit {

    private MpiInit() {}

    /**
     * Starts MPI, unless somebody else has.
     *
     * @param memory room for an {@code int}
     * @param address where it is
     * @return whether it was started here
     */
    static boolean run(Memory memory, long address) {
        MpiLibrary.check(MpiFunctions.MPI_Finalized(address), "MPI_Finalized");
        if (memory.getInt(0) != 0) {
            throw MpiWorld.ended();
        }
        MpiLibrary.check(MpiFunctions.MPI_Initialized(address), "MPI_Initialized");
        boolean before = memory.getInt(0) != 0;
        if (before) {
            MpiLibrary.check(MpiFunctions.MPI_Query_thread(address), "MPI_Query_thread");
        } else {
            MpiLibrary.check(
                    MpiFunctions.MPI_Init_thread(0, 0, MpiLibrary.THREAD_MULTIPLE, address),
                    "MPI_Init_thread");
        }
        checkThreads(memory.getInt(0), before);
        return !before;
    }

    /**
     * Checks that all threads may call MPI.
     *
     * @param level what MPI grants
     * @param before whether MPI was started by somebody else
     */
    static void checkThreads(int level, boolean before) {
        if (level < MpiLibrary.THREAD_MULTIPLE) {
            throw new CollectiveException(
                    "The mpi backend needs the thread level MPI_THREAD_MULTIPLE (3), but this MPI"
                            + " grants "
                            + level
                            + ": "
                            + (before
                                    ? "call MPI_Init_thread with MPI_THREAD_MULTIPLE where the"
                                            + " program starts MPI."
                                    : "install an Open MPI that was built with thread support"
                                            + " (ompi_info | grep Thread)."));
        }
    }
}
