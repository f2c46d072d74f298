package io.djltp.collective.mpi;

import com.sun.jna.Native;
import com.sun.jna.NativeLibrary;

/**
 * The functions of MPI that the backend calls, under their own names. Handles and addresses are
 * plain numbers, as they are in Open MPI on 64-bit machines, so that a call makes no objects.
 *
 * <p>A request is written to the address that a non-blocking function gets last, and until a test
 * has found it complete, MPI owns all memory that the call names.
 */
final class MpiFunctions {

    private MpiFunctions() {}

    /**
     * Binds the functions.
     *
     * @param library the library
     * @throws UnsatisfiedLinkError if it lacks one of them
     */
    static void bind(NativeLibrary library) {
        Native.register(MpiFunctions.class, library);
    }

    static native int MPI_Initialized(long flag);

    static native int MPI_Finalized(long flag);

    static native int MPI_Init_thread(long argc, long argv, int required, long provided);

    static native int MPI_Query_thread(long provided);

    static native int MPI_Finalize();

    static native int MPI_Get_library_version(byte[] text, long length);

    static native int MPI_Error_string(int code, byte[] text, long length);

    static native int MPI_Comm_rank(long comm, long rank);

    static native int MPI_Comm_size(long comm, long size);

    static native int MPI_Comm_set_errhandler(long comm, long handler);

    static native int MPI_Comm_idup(long comm, long copy, long request);

    static native int MPI_Comm_split(long comm, int color, int key, long part);

    static native int MPI_Comm_free(long comm);

    static native int MPI_Test(long request, long flag, long status);

    static native int MPI_Ibarrier(long comm, long request);

    static native int MPI_Ibcast(
            long buffer, int count, long type, int root, long comm, long request);

    static native int MPI_Iallreduce(
            long input, long output, int count, long type, long op, long comm, long request);

    static native int MPI_Iallgather(
            long input,
            int count,
            long type,
            long output,
            int outputCount,
            long outputType,
            long comm,
            long request);

    static native int MPI_Iallgatherv(
            long input,
            int count,
            long type,
            long output,
            long counts,
            long starts,
            long outputType,
            long comm,
            long request);

    static native int MPI_Ialltoallv(
            long input,
            long counts,
            long starts,
            long type,
            long output,
            long outputCounts,
            long outputStarts,
            long outputType,
            long comm,
            long request);
}
