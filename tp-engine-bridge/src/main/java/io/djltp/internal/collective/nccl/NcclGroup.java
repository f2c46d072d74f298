package io.djltp.internal.collective.nccl;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveCall;
import io.djltp.collective.CollectiveException;
import io.djltp.collective.DifferentCalls;
import io.djltp.collective.FlightRecorder;
import io.djltp.collective.GroupFailure;

import org.bytedeco.cuda.nccl.ncclComm;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * The ranks of a group that live in this process, and the thread that watches over them: it finds
 * errors that NCCL has met on its own and operations that take too long. Whatever ends the group,
 * all communicators are aborted at once, so that no kernel and no thread stays behind.
 */
final class NcclGroup {

    private static final Logger logger = LoggerFactory.getLogger(NcclGroup.class);

    private static final long LONGEST_INTERVAL_MILLIS = 50;

    private static final long SETTLE_NANOS = 10_000_000;

    /** How long a thread waits for an abort: far longer than one takes. */
    private static final long ABORT_SECONDS = 30;

    private final int size;
    private final Duration timeout;
    private final GroupFailure failure = new GroupFailure();
    private final List<NcclEndpoint> endpoints = new ArrayList<>();
    private final List<FlightRecorder> recorders = new ArrayList<>();
    private final CountDownLatch aborted = new CountDownLatch(1);
    private final CountDownLatch closed = new CountDownLatch(1);

    NcclGroup(int size, Duration timeout) {
        this.size = size;
        this.timeout = timeout;
        failure.onSet(this::abortAll);
    }

    GroupFailure getFailure() {
        return failure;
    }

    void add(NcclEndpoint endpoint, FlightRecorder recorder) {
        endpoints.add(endpoint);
        recorders.add(recorder);
    }

    void startWatch() {
        Thread thread = new Thread(this::watch, "tp-nccl-watchdog");
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
            NcclWork work = endpoint.getQueue().getOldest();
            if (work != null && !work.getOwner().isPart()) {
                calls.put(endpoint.getRank(), work.getCall());
            }
        }
        String disagreement = findDisagreement(calls);
        CollectiveException seen = new CollectiveException(message);
        failure.set(disagreement == null ? seen : new CollectiveException(disagreement, seen));
    }

    /** Ends the group if the thread was interrupted; the flag stays. */
    void checkInterrupt(NcclWork work) {
        if (Thread.currentThread().isInterrupted()) {
            String message = "rank " + work.getRank() + " was interrupted in " + work.getCall();
            failure.set(new CollectiveException(message, new InterruptedException()));
        }
    }

    /** Throws if the group has failed, once nothing of it runs any more. */
    void checkFailure(NcclWork work) {
        if (failure.isSet()) {
            awaitAborted();
            work.getOwner().throwIfFailed();
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
        boolean interrupted = false;
        long start = System.nanoTime();
        long left = TimeUnit.SECONDS.toNanos(ABORT_SECONDS);
        while (aborted.getCount() > 0 && left > 0) {
            try {
                if (!aborted.await(left, TimeUnit.NANOSECONDS)) {
                    logger.error("NCCL did not come to an end in {} s", ABORT_SECONDS);
                }
            } catch (InterruptedException e) {
                interrupted = true;
            }
            left = TimeUnit.SECONDS.toNanos(ABORT_SECONDS) - (System.nanoTime() - start);
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private void watch() {
        long interval = Math.max(1, Math.min(LONGEST_INTERVAL_MILLIS, timeout.toMillis() / 10));
        try {
            while (!closed.await(interval, TimeUnit.MILLISECONDS) && !failure.isSet()) {
                for (int i = 0; i < endpoints.size(); i++) {
                    inspect(endpoints.get(i));
                }
            }
        } catch (InterruptedException e) {
            logger.warn("The watch over a group of NCCL ranks was interrupted", e);
        } catch (RuntimeException e) {
            failure.set(new CollectiveException("the watch over the NCCL ranks failed: " + e, e));
        }
    }

    private void inspect(NcclEndpoint endpoint) {
        String error = endpoint.findError();
        if (error != null) {
            fail(error);
        } else if (endpoint.getQueue().isOverdue(timeout)) {
            NcclWork work = endpoint.getQueue().getOldest();
            if (work != null) {
                fail(describeTimeout(endpoint, work));
            }
        }
    }

    private String describeTimeout(NcclEndpoint endpoint, NcclWork work) {
        String waiting = "in " + work.getCall();
        List<String> others = new ArrayList<>();
        for (int i = 0; i < endpoints.size(); i++) {
            endpoints.get(i).findError(); // so that the record is up to date
            String latest = recorders.get(i).latest();
            if (!latest.equals(waiting)) {
                others.add("rank " + endpoints.get(i).getRank() + " (" + latest + ")");
            }
        }
        if (endpoints.size() < size) {
            others.add("ranks of other processes");
        }
        return "time-out after "
                + timeout.toMillis()
                + " ms: rank "
                + endpoint.getRank()
                + " waits "
                + waiting
                + " for "
                + (others.isEmpty() ? "its GPU" : String.join(", ", others));
    }

    private void abortAll() {
        try {
            int device = Cuda.currentOrNone();
            settle();
            abortComms();
            Cuda.restore(device);
        } finally {
            aborted.countDown();
        }
    }

    /**
     * Aborts all communicators. In one NCCL group: all of them are told to stop before the first is
     * waited for, because what one frees may wait for the kernels of another.
     */
    private void abortComms() {
        List<ncclComm> comms = new ArrayList<>();
        long deadline = System.nanoTime() + NativeCallLock.PATIENCE.toNanos(); // of all together
        endpoints.forEach(endpoint -> comms.addAll(endpoint.end(deadline)));
        NcclBootstrap.abort(comms);
        List<ncclComm> left = new ArrayList<>(); // splits under way have ended now, well or not
        endpoints.forEach(endpoint -> left.add(endpoint.takeUnclaimedPart()));
        NcclBootstrap.abort(left);
    }

    /** Lets operations that other ranks have already seen the end of come to it here, too. */
    private void settle() {
        long start = System.nanoTime();
        Backoff backoff = new Backoff();
        for (int i = 0; i < endpoints.size(); ) {
            if (endpoints.get(i).isIdle()) {
                i++;
            } else if (System.nanoTime() - start > SETTLE_NANOS) {
                return;
            } else {
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
    private static String findDisagreement(SortedMap<Integer, CollectiveCall> calls) {
        if (calls.isEmpty()) {
            return null;
        }
        CollectiveCall first = calls.get(calls.firstKey());
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
        return DifferentCalls.describe(texts);
    }

    private static String findShares(SortedMap<Integer, CollectiveCall> calls) {
        for (Map.Entry<Integer, CollectiveCall> from : calls.entrySet()) {
            for (Map.Entry<Integer, CollectiveCall> to : calls.entrySet()) {
                long sent = from.getValue().getShares()[to.getKey()];
                long expected = to.getValue().getReceivedShares()[from.getKey()];
                if (sent != expected) {
                    return "%s: rank %s sends %s elements to rank %s, which expects %s"
                            .formatted(
                                    from.getValue().describe(),
                                    from.getKey(),
                                    sent,
                                    to.getKey(),
                                    expected);
                }
            }
        }
        return null;
    }
}
