package io.djltp.collective;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Where the threads of a group meet: once with what each is about to do, and once when all have
 * done it. Whatever goes wrong at a meeting is kept as the group's failure, and every rank gets it,
 * now or at its next call.
 */
final class LocalRendezvous {

    private final ReentrantLock lock = new ReentrantLock();
    private final Condition met = lock.newCondition();
    private final long timeoutNanos;

    private final LocalCall[] calls; // the latest call of each rank
    private final boolean[] here; // who has come to the present meeting
    private int arrived;
    private long meeting;
    private CollectiveException failure;

    LocalRendezvous(int size, Duration timeout) {
        timeoutNanos = timeout.toNanos();
        calls = new LocalCall[size];
        here = new boolean[size];
    }

    int size() {
        return calls.length;
    }

    /**
     * Waits until every rank has come with its call, and checks that they agree.
     *
     * @param rank the rank that comes
     * @param call what it is about to do
     * @return the calls of all ranks; they stay as they are until {@link #leave}
     */
    LocalCall[] meet(int rank, LocalCall call) {
        lock.lock();
        try {
            throwFailure(rank);
            calls[rank] = call;
            here[rank] = true;
            if (++arrived < calls.length) {
                awaitOthers(rank);
            } else if (checkAgreement()) {
                endMeeting();
            } else {
                throwFailure(rank);
            }
            return calls;
        } finally {
            lock.unlock();
        }
    }

    /**
     * Waits until every rank has done its part, which takes no longer than the work itself. A
     * failure is thrown only then.
     *
     * @param rank the rank that is done
     */
    void leave(int rank) {
        lock.lock();
        try {
            long present = meeting;
            if (++arrived == calls.length) {
                endMeeting();
            }
            // whatever happens: until then, the others read this rank's tensors
            while (present == meeting) {
                met.awaitUninterruptibly();
            }
            throwFailure(rank);
        } finally {
            lock.unlock();
        }
    }

    void fail(CollectiveException cause) {
        lock.lock();
        try {
            if (failure == null) {
                failure = cause;
            }
            met.signalAll();
        } finally {
            lock.unlock();
        }
    }

    private void endMeeting() {
        arrived = 0;
        Arrays.fill(here, false);
        meeting++;
        met.signalAll();
    }

    private void awaitOthers(int rank) {
        long present = meeting;
        long left = timeoutNanos;
        // a failure after the meeting is for later: the others count on this rank now
        while (present == meeting) {
            throwFailure(rank);
            if (left <= 0) {
                fail(new CollectiveException(describeTimeout(rank)));
            } else {
                try {
                    left = met.awaitNanos(left);
                } catch (InterruptedException e) {
                    Thread.currentThread().interrupt();
                    fail(
                            new CollectiveException(
                                    "rank " + rank + " was interrupted in " + calls[rank], e));
                }
            }
        }
    }

    private void throwFailure(int rank) {
        if (failure != null) {
            // one exception a rank: a shared one would carry another thread's stack trace
            throw new CollectiveException(
                    "rank " + rank + " of " + calls.length + ": " + failure.getMessage(),
                    failure.getCause() == null ? failure : failure.getCause());
        }
    }

    private boolean checkAgreement() {
        for (LocalCall call : calls) {
            if (!call.agreesWith(calls[0])) {
                StringBuilder text = new StringBuilder("the ranks called different operations:");
                for (int i = 0; i < calls.length; i++) {
                    text.append(i == 0 ? " " : "; ").append("rank ").append(i).append(' ');
                    text.append(calls[i]);
                }
                fail(new CollectiveException(text.toString()));
                return false;
            }
        }
        return true;
    }

    private String describeTimeout(int rank) {
        List<String> missing = new ArrayList<>();
        for (int i = 0; i < here.length; i++) {
            if (!here[i]) {
                missing.add(
                        "rank "
                                + i
                                + (calls[i] == null
                                        ? " (has not called anything yet)"
                                        : " (last in " + calls[i] + ")"));
            }
        }
        return "time-out after "
                + TimeUnit.NANOSECONDS.toMillis(timeoutNanos)
                + " ms: rank "
                + rank
                + " waits in "
                + calls[rank]
                + " for "
                + String.join(", ", missing);
    }
}
