package io.djltp.internal.collective.nccl;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveException;
import io.djltp.internal.collective.CollectiveCall;
import io.djltp.internal.collective.FlightRecorder;
import io.djltp.internal.collective.GroupFailure;

import org.bytedeco.cuda.global.nccl;
import org.bytedeco.cuda.nccl.ncclComm;
import org.bytedeco.cuda.nccl.ncclConfig_t;
import org.bytedeco.cuda.nccl.ncclUniqueId;
import org.bytedeco.javacpp.PointerPointer;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * The ranks of a group that live in this process, and the two threads that watch over them. One
 * asks the GPUs which operations are done, and NCCL for errors. Such a call may wait: CUDA holds
 * the lock of a GPU's context while it loads a kernel, which waits for the kernels that run, and
 * those of NCCL wait for the other ranks. So the other thread, which finds operations that take too
 * long, asks nobody. Whatever ends the group, all communicators are aborted at once, so that no
 * kernel and no thread stays behind.
 */
final class NcclGroup {

    private static final Logger logger = LoggerFactory.getLogger(NcclGroup.class);

    /** What marks a configuration as initialised, {@code NCCL_API_MAGIC}. */
    private static final int MAGIC = 0xcafebeef;

    /** What marks an option as not set, {@code NCCL_CONFIG_UNDEF_INT}. */
    private static final int UNDEFINED = Integer.MIN_VALUE;

    private static final long LONGEST_INTERVAL_MILLIS = 50;
    private static final long SETTLE_MILLIS = 10;

    /** How long a thread waits for an abort: far longer than one takes. */
    private static final long ABORT_SECONDS = 30;

    private final int size;
    final Duration timeout;
    private final GroupFailure failure = new GroupFailure();
    private final List<NcclEndpoint> endpoints = new ArrayList<>();
    private final List<FlightRecorder> recorders = new ArrayList<>();
    private final CompletableFuture<Void> aborted = new CompletableFuture<>();
    private final CountDownLatch closed = new CountDownLatch(1);

    NcclGroup(int size, Duration timeout) {
        this.size = size;
        this.timeout = timeout;
        failure.onSet(this::abortAll);
    }

    GroupFailure getFailure() {
        return failure;
    }

    /**
     * Brings the ranks of this process together with all others of the group, at once, and waits
     * until all have come.
     *
     * @param uniqueId the id under which they meet
     * @param firstRank the first rank of this process
     * @param devices the GPU of each
     * @return the communicators of this process's ranks
     */
    ncclComm[] connect(byte[] uniqueId, int firstRank, int... devices) {
        int device = Cuda.currentOrNone();
        // in memory that outlives the call: NCCL fills it in again when a communicator is ready
        try (PointerPointer<ncclComm> places = new PointerPointer<>(devices.length)) {
            for (int i = 0; i < devices.length; i++) {
                places.put(i, (ncclComm) null);
            }
            int error = begin(places, uniqueId, firstRank, devices);
            ncclComm[] comms = new ncclComm[devices.length];
            Arrays.setAll(comms, i -> places.get(ncclComm.class, i));
            try {
                Cuda.checkNccl(error, "ncclGroupEnd");
                awaitAll(comms, firstRank);
            } catch (CollectiveException e) {
                abort(Arrays.asList(comms));
                int last = firstRank + devices.length - 1;
                String ranks = last == firstRank ? "rank " : "ranks " + firstRank + " to ";
                String remedy =
                        String.valueOf(e.getMessage()).contains("Duplicate GPU")
                                ? ": each process of a machine needs GPUs of its own, by"
                                        + " ParallelConfig.optDevices or CUDA_VISIBLE_DEVICES"
                                : "";
                throw new CollectiveException(
                        "A group of %s ranks with %s%s in this process could not be formed: %s%s"
                                .formatted(size, ranks, last, e.getMessage(), remedy),
                        e);
            }
            return comms;
        } finally {
            Cuda.restore(device);
        }
    }

    private int begin(
            PointerPointer<ncclComm> places, byte[] uniqueId, int firstRank, int... devices) {
        try (ncclUniqueId id = new ncclUniqueId();
                ncclConfig_t config = newConfig()) {
            id.internal().put(uniqueId);
            int error = nccl.ncclGroupStart();
            for (int i = 0; i < devices.length && Cuda.isGood(error); i++) {
                Cuda.use(devices[i]);
                error =
                        nccl.ncclCommInitRankConfig(
                                places.position(i), size, id, firstRank + i, config);
            }
            places.position(0);
            int end = nccl.ncclGroupEnd();
            return Cuda.isGood(error) ? end : error;
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

    private void awaitAll(ncclComm[] comms, int firstRank) {
        Backoff backoff = new Backoff();
        long start = System.nanoTime();
        int[] state = new int[1];
        for (int i = 0; i < comms.length; ) {
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

    void add(NcclEndpoint endpoint, FlightRecorder recorder) {
        endpoints.add(endpoint);
        recorders.add(recorder);
    }

    void startWatch() {
        start("tp-nccl-poll", () -> watch(this::findError));
        start("tp-nccl-watchdog", () -> watch(this::findTimeout));
    }

    private static void start(String name, Runnable task) {
        Thread thread = new Thread(task, name);
        thread.setDaemon(true);
        thread.start();
    }

    /**
     * Ends the group because of an error that may come from ranks that do not call the same.
     *
     * @param message what has been seen, if that is not the reason
     */
    void fail(String message) {
        SortedMap<Integer, CollectiveCall> calls = new TreeMap<>();
        for (NcclEndpoint endpoint : endpoints) {
            NcclWork work = endpoint.queue.getOldest();
            if (work != null && work.call.getGroup().isEmpty()) { // not of a part
                calls.put(endpoint.rank, work.call);
            }
        }
        String disagreement = findDisagreement(calls);
        CollectiveException seen = new CollectiveException(message);
        failure.set(disagreement == null ? seen : new CollectiveException(disagreement, seen));
    }

    /** Throws if the group has failed, once nothing of it runs any more. */
    void checkFailure(int rank) {
        if (failure.isSet()) {
            awaitAborted();
            failure.check(rank, size);
        }
    }

    /** Lets the watch end when the last rank has closed. */
    void onClose() {
        if (endpoints.stream().allMatch(NcclEndpoint::isClosed)) {
            closed.countDown();
        }
    }

    /** Waits until nothing of the group runs any more, once it has failed. */
    void awaitAborted() {
        try {
            aborted.copy().orTimeout(ABORT_SECONDS, TimeUnit.SECONDS).join(); // interrupted or not
        } catch (CompletionException e) {
            logger.error("NCCL did not come to an end in {} s", ABORT_SECONDS);
        }
    }

    private void watch(Consumer<NcclEndpoint> look) {
        long interval = Math.max(1, Math.min(LONGEST_INTERVAL_MILLIS, timeout.toMillis() / 10));
        try {
            while (!closed.await(interval, TimeUnit.MILLISECONDS) && !failure.isSet()) {
                endpoints.forEach(look);
            }
        } catch (InterruptedException e) {
            logger.warn("The watch over a group of NCCL ranks was interrupted", e);
        } catch (RuntimeException e) {
            failure.set(new CollectiveException("the watch over the NCCL ranks failed: " + e, e));
        }
    }

    private void findError(NcclEndpoint endpoint) {
        String error = endpoint.findError();
        if (error != null) {
            fail(error);
        }
    }

    private void findTimeout(NcclEndpoint endpoint) {
        if (endpoint.queue.isOverdue(timeout)) {
            NcclWork work = endpoint.queue.getOldest();
            if (work != null) {
                fail(describeTimeout(endpoint, work.call));
            }
        }
    }

    private String describeTimeout(NcclEndpoint endpoint, CollectiveCall call) {
        List<String> others = new ArrayList<>();
        for (int i = 0; i < endpoints.size(); i++) {
            String latest = recorders.get(i).latest();
            if (!latest.equals("in " + call)) {
                others.add("rank " + endpoints.get(i).rank + " (" + latest + ")");
            }
        }
        if (endpoints.size() < size) {
            others.add("ranks of other processes");
        }
        return call.timedOut(
                timeout, endpoint.rank, others.isEmpty() ? List.of("its GPU") : others);
    }

    private void abortAll() {
        try {
            int device = Cuda.currentOrNone();
            CompletableFuture.runAsync(this::settle, task -> start("tp-nccl-settle", task))
                    .completeOnTimeout(null, SETTLE_MILLIS, TimeUnit.MILLISECONDS)
                    .join(); // interrupted or not
            abortComms();
            Cuda.restore(device);
        } finally {
            aborted.complete(null);
        }
    }

    /**
     * Aborts all communicators. In one NCCL group: all of them are told to stop before the first is
     * waited for, because what one frees may wait for the kernels of another.
     */
    private void abortComms() {
        List<ncclComm> comms = new ArrayList<>();
        long deadline = System.nanoTime() + NcclEndpoint.PATIENCE.toNanos(); // of all together
        endpoints.forEach(endpoint -> comms.addAll(endpoint.end(deadline)));
        abort(comms);
        List<@Nullable ncclComm> left =
                new ArrayList<>(); // splits under way have ended now, well or not
        endpoints.forEach(endpoint -> left.add(endpoint.takeUnclaimedPart()));
        abort(left);
    }

    /** Aborts communicators; those that were not even begun are {@code null}. */
    static void abort(List<? extends @Nullable ncclComm> comms) {
        nccl.ncclGroupStart();
        for (ncclComm comm : comms) {
            if (comm != null && !comm.isNull()) {
                nccl.ncclCommAbort(comm);
            }
        }
        nccl.ncclGroupEnd();
    }

    /** Lets operations that other ranks have already seen the end of come to it here, too. */
    private void settle() {
        Backoff backoff = new Backoff();
        for (NcclEndpoint endpoint : endpoints) {
            while (!endpoint.isIdle()) {
                backoff.pause();
            }
        }
    }

    /**
     * Finds out whether ranks of this process are in calls that do not fit each other: NCCL does
     * not look, and what comes of it is a time-out or an error that names no operation.
     *
     * @param calls the call that each rank is in
     * @return in what they differ, or {@code null}
     */
    private static @Nullable String findDisagreement(SortedMap<Integer, CollectiveCall> calls) {
        if (calls.isEmpty()) {
            return null;
        }
        CollectiveCall first = calls.values().iterator().next();
        boolean same = true;
        for (CollectiveCall call : calls.values()) {
            if (call.getSequence() != first.getSequence()) {
                return null; // one is on its way: that is no disagreement yet
            }
            same &= call.getAgreement().equals(first.getAgreement());
        }
        if (same) {
            return first.getCollective() == Collective.ALL_TO_ALL ? findShares(calls) : null;
        }
        List<String> texts = new ArrayList<>();
        calls.forEach((rank, call) -> texts.add("rank " + rank + " " + call));
        return CollectiveCall.describeDifference(texts);
    }

    private static @Nullable String findShares(SortedMap<Integer, CollectiveCall> calls) {
        for (Map.Entry<Integer, CollectiveCall> sender : calls.entrySet()) {
            for (Map.Entry<Integer, CollectiveCall> receiver : calls.entrySet()) {
                int from = sender.getKey();
                int to = receiver.getKey();
                long sent = sender.getValue().getShares()[to];
                long expected = receiver.getValue().getReceivedShares()[from];
                if (sent != expected) {
                    return "%s: rank %s sends %s elements to rank %s, which expects %s"
                            .formatted(sender.getValue().describe(), from, sent, to, expected);
                }
            }
        }
        return null;
    }
}
