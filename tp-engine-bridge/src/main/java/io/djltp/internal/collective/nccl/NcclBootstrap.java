package io.djltp.internal.collective.nccl;

import io.djltp.collective.CollectiveException;

import org.bytedeco.cuda.global.nccl;
import org.bytedeco.cuda.nccl.ncclComm;
import org.bytedeco.cuda.nccl.ncclConfig_t;
import org.bytedeco.cuda.nccl.ncclUniqueId;
import org.bytedeco.javacpp.PointerPointer;

import java.time.Duration;
import java.util.Arrays;
import java.util.List;

/** Brings the ranks of a group together: all those of this process at once. */
final class NcclBootstrap {

    /** What marks a configuration as initialised, {@code NCCL_API_MAGIC}. */
    private static final int MAGIC = 0xcafebeef;

    /** What marks an option as not set, {@code NCCL_CONFIG_UNDEF_INT}. */
    private static final int UNDEFINED = Integer.MIN_VALUE;

    private final int size;
    private final int firstRank;
    private final int[] devices;
    private final Duration timeout;

    NcclBootstrap(int size, int firstRank, int[] devices, Duration timeout) {
        this.size = size;
        this.firstRank = firstRank;
        this.devices = devices;
        this.timeout = timeout;
    }

    /**
     * Waits until all ranks of the group have come.
     *
     * @param uniqueId the id under which they meet
     * @return the communicators of this process's ranks
     */
    ncclComm[] run(byte[] uniqueId) {
        int device = Cuda.currentOrNone();
        // in memory that outlives the call: NCCL fills it in again when a communicator is ready
        try (PointerPointer<ncclComm> places = new PointerPointer<>(devices.length)) {
            for (int i = 0; i < devices.length; i++) {
                places.put(i, (ncclComm) null);
            }
            int error = begin(places, uniqueId);
            ncclComm[] comms = new ncclComm[devices.length];
            for (int i = 0; i < comms.length; i++) {
                comms[i] = places.get(ncclComm.class, i);
            }
            try {
                Cuda.checkNccl(error, "ncclGroupEnd");
                await(comms);
            } catch (CollectiveException e) {
                abort(Arrays.asList(comms));
                throw new CollectiveException(
                        describe() + " could not be formed: " + e.getMessage(), e);
            }
            return comms;
        } finally {
            Cuda.restore(device);
        }
    }

    private int begin(PointerPointer<ncclComm> places, byte[] uniqueId) {
        try (ncclUniqueId id = new ncclUniqueId();
                ncclConfig_t config = newConfig()) {
            id.internal().put(uniqueId);
            int error = nccl.ncclGroupStart();
            for (int i = 0; i < devices.length && isGood(error); i++) {
                Cuda.use(devices[i]);
                error =
                        nccl.ncclCommInitRankConfig(
                                places.position(i), size, id, firstRank + i, config);
            }
            places.position(0);
            int end = nccl.ncclGroupEnd();
            return isGood(error) ? end : error;
        }
    }

    /** Returns what C programs get from {@code NCCL_CONFIG_INITIALIZER}, and not blocking. */
    private static ncclConfig_t newConfig() {
        ncclConfig_t config = new ncclConfig_t();
        config.size(config.sizeof());
        config.magic(MAGIC);
        config.version(nccl.NCCL_VERSION_CODE);
        config.cgaClusterSize(UNDEFINED).minCTAs(UNDEFINED).maxCTAs(UNDEFINED);
        config.netName(null).splitShare(UNDEFINED).trafficClass(UNDEFINED).commName(null);
        config.collnetEnable(UNDEFINED).CTAPolicy(UNDEFINED).shrinkShare(UNDEFINED);
        config.nvlsCTAs(UNDEFINED);
        return config.blocking(0);
    }

    private void await(ncclComm[] comms) {
        Backoff backoff = new Backoff();
        long start = System.nanoTime();
        int[] state = new int[1];
        for (int i = 0; i < devices.length; ) {
            Cuda.checkNccl(nccl.ncclCommGetAsyncError(comms[i], state), "rank " + (firstRank + i));
            Cuda.checkNccl(state[0], "rank " + (firstRank + i));
            if (state[0] == nccl.ncclSuccess) {
                i++;
                continue;
            }
            if (System.nanoTime() - start > timeout.toNanos()) {
                throw new CollectiveException(
                        ("after %s ms not all %s ranks have come; start the others with the same"
                                        + " unique id and see that the machines reach each other"
                                        + " (NCCL_SOCKET_IFNAME), or allow more time")
                                .formatted(timeout.toMillis(), size));
            }
            if (Thread.currentThread().isInterrupted()) {
                throw new CollectiveException(
                        "interrupted while waiting for the other ranks",
                        new InterruptedException());
            }
            backoff.pause();
        }
    }

    /** Aborts communicators; those that were not even begun are {@code null}. */
    static void abort(List<ncclComm> comms) {
        nccl.ncclGroupStart();
        for (ncclComm comm : comms) {
            if (comm != null && !comm.isNull()) {
                nccl.ncclCommAbort(comm);
            }
        }
        nccl.ncclGroupEnd();
    }

    private String describe() {
        int last = firstRank + devices.length - 1;
        return "A group of %s ranks with %s in this process"
                .formatted(
                        size,
                        last == firstRank ? "rank " + last : "ranks " + firstRank + " to " + last);
    }

    private static boolean isGood(int result) {
        return result == nccl.ncclSuccess || result == nccl.ncclInProgress;
    }
}
