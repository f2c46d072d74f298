package io.djltp.collective.mpi;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;

import io.djltp.collective.GroupFailure;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.Set;

/** The communicators of MPI that belong to a group and its parts, each freed once. */
final class MpiHandles {

    private final MpiWorld world;
    private final Set<Long> open = new LinkedHashSet<>();

    MpiHandles(MpiWorld world) {
        this.world = world;
    }

    synchronized void add(long handle) {
        open.add(handle);
    }

    /** Frees a communicator, unless operations may be under way for ever. */
    synchronized void free(long handle, GroupFailure failure) {
        if (!failure.isSet() && open.remove(handle)) {
            try (Memory memory = new Memory(Long.BYTES)) {
                memory.setLong(0, handle);
                MpiLibrary.check(
                        MpiFunctions.MPI_Comm_free(Pointer.nativeValue(memory)), "MPI_Comm_free");
            }
            if (open.isEmpty()) {
                world.released();
            }
        }
    }

    synchronized void freeAll(GroupFailure failure) {
        new ArrayList<>(open).forEach(handle -> free(handle, failure));
    }
}
