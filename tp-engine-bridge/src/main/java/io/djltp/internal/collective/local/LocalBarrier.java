package io.djltp.internal.collective.local;

import io.djltp.collective.CollectiveException;
import io.djltp.internal.collective.CollectiveCall;
import io.djltp.internal.collective.GroupFailure;

import org.bytedeco.pytorch.Tensor;

import java.nio.FloatBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Where the threads of a group meet: once with what each is about to do, and once when all have
 * done it. Whatever goes wrong at a meeting is kept as the group's failure, and every rank gets it,
 * now or at its next call.
 */
final class LocalBarrier {

    private static final int PROCESSORS = Runtime.getRuntime().availableProcessors();

    private final SpinBarrier meeting;
    private final Duration timeout;
    final int[] ranks; // by their numbers in the group of all ranks
    private final int worldSize;

    private final CollectiveCall[] calls; // the latest call of each rank
    private final long[] latest; // the meeting that each rank has come to last

    /** What each rank hands to the others; a rank puts its own there before it meets them. */
    final SmallMessages.Mailbox[] mailboxes;

    /** What each rank gives to the present operation, flat, until it has left. */
    final Tensor[] inputs;

    /** The same, where each rank reduces a short range of it. */
    final FloatBuffer[] floats;

    final GroupFailure failure;
    private final Map<Integer, LocalBarrier> parts = new HashMap<>(); // of the present split
    private final Place[] places; // of the ranks in the present split
    private final Runnable wake;
    private final AtomicInteger closed = new AtomicInteger(); // ranks that do not come any more

    /**
     * Creates the place where the ranks of a group meet.
     *
     * @param ranks the ranks of the group, by their numbers in the group of all ranks
     * @param worldSize the number of all ranks
     * @param timeout how long a rank waits for the others
     * @param failure the failure of the group
     */
    LocalBarrier(int[] ranks, int worldSize, Duration timeout, GroupFailure failure) {
        this.ranks = ranks;
        this.worldSize = worldSize;
        this.failure = failure;
        this.timeout = timeout;
        places = new Place[ranks.length];
        calls = new CollectiveCall[ranks.length];
        latest = new long[ranks.length];
        Arrays.fill(latest, -1);
        mailboxes = new SmallMessages.Mailbox[ranks.length];
        inputs = new Tensor[ranks.length];
        floats = new FloatBuffer[ranks.length];
        // a processor that one rank keeps busy while it waits may be that of the rank it waits for
        meeting = new SpinBarrier(ranks.length, worldSize <= PROCESSORS, failure::isSet);
        wake = meeting::wake;
        failure.onSet(wake);
    }

    /**
     * A rank's place in a part of the group.
     *
     * @param barrier where the ranks of the part meet
     * @param rank the rank in the part
     */
    record Part(LocalBarrier barrier, int rank) {}

    /** What a rank says in a split. */
    private record Place(int rank, int color, int key) {}

    /** Forms parts of the group: a meeting of all ranks, each with its color and key. */
    Part split(int rank, CollectiveCall call, int color, int key) {
        synchronized (parts) {
            parts.clear(); // of the split before, which all ranks have left
            places[rank] = new Place(rank, color, key);
        }
        meet(rank, call);
        Part part;
        synchronized (parts) {
            // those of one key stay in their order
            int[] members =
                    Arrays.stream(places)
                            .filter(place -> place.color == color)
                            .sorted(Comparator.comparingInt(Place::key))
                            .mapToInt(Place::rank)
                            .toArray();
            int[] worldRanks = Arrays.stream(members).map(member -> ranks[member]).toArray();
            LocalBarrier shared =
                    parts.computeIfAbsent(
                            color, c -> new LocalBarrier(worldRanks, worldSize, timeout, failure));
            part = new Part(shared, Arrays.stream(members).boxed().toList().indexOf(rank));
        }
        leave(rank);
        return part;
    }

    /**
     * Waits until every rank has come with its call, and checks that they agree.
     *
     * @param rank the rank that comes
     * @param call what it is about to do
     * @return the calls of all ranks; they stay as they are until {@link #leave}
     */
    CollectiveCall[] meet(int rank, CollectiveCall call) {
        throwFailure(rank);
        call.beginWait();
        long present = meeting.number();
        calls[rank] = call;
        latest[rank] = present;
        if (!meeting.arrive(this::checkAgreement)) {
            throwFailure(rank);
        }
        meeting.spin(present);
        awaitOthers(rank, present);
        call.endWait();
        return calls;
    }

    /**
     * Waits until every rank has done its part, which takes no longer than the work itself. A
     * failure is thrown only then.
     *
     * @param rank the rank that is done
     */
    void leave(int rank) {
        long present = meeting.number();
        meeting.arrive(() -> true);
        meeting.spin(present);
        // whatever happens: until then, the others read this rank's tensors
        meeting.sleepUntilEnd(present);
        throwFailure(rank);
    }

    /** Lets go of the group's failure, which lives longer, when the last rank has closed. */
    void close() {
        if (closed.incrementAndGet() == calls.length) {
            failure.forget(wake);
        }
    }

    private void awaitOthers(int rank, long present) {
        long end = System.nanoTime() + timeout.toNanos();
        while (!meeting.hasEnded(present)) {
            // a failure after the meeting is for later: the others count on this rank now
            if (failure.isSet() && meeting.breakBarrier(present)) {
                throwFailure(rank);
            }
            long left = end - System.nanoTime();
            if (left <= 0) {
                failure.set(new CollectiveException(describeTimeout(rank, present)));
            } else {
                try {
                    meeting.sleep(present, left);
                } catch (InterruptedException e) {
                    Thread.currentThread().interrupt();
                    failure.set(calls[rank].interruptedOn(ranks[rank], e));
                }
            }
        }
    }

    private void throwFailure(int rank) {
        failure.check(ranks[rank], worldSize);
    }

    private boolean checkAgreement() {
        for (CollectiveCall call : calls) {
            if (!call.agreesWith(calls[0])) {
                List<String> all = new ArrayList<>();
                for (int i = 0; i < calls.length; i++) {
                    all.add("rank " + ranks[i] + " " + calls[i]);
                }
                failure.set(new CollectiveException(CollectiveCall.describeDifference(all)));
                return false;
            }
        }
        return true;
    }

    private String describeTimeout(int rank, long present) {
        List<String> missing = new ArrayList<>();
        for (int i = 0; i < latest.length; i++) {
            if (latest[i] != present) {
                String last =
                        calls[i] == null ? "has not called anything yet" : "last in " + calls[i];
                missing.add("rank " + ranks[i] + " (" + last + ")");
            }
        }
        return calls[rank].timedOut(timeout, ranks[rank], missing);
    }
}
