package io.djltp.report;

import io.djltp.collective.TrafficTable.Direction;
import io.djltp.internal.collective.AbstractCommunicator;
import io.djltp.internal.collective.CollectiveCall;
import io.djltp.internal.collective.FlightRecorder;
import io.djltp.internal.rank.RankPool;

import java.util.ArrayList;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.IntStream;

/**
 * Where the time of a step goes, for each rank of this process: to computing forwards, backwards
 * and the update, to collective operations by kind, to waiting in them for ranks that come later,
 * and to what happens between the passes.
 *
 * <p>A rank that calls an operation at \(t_r\) and stands still in it for \(b_r\) has waited for
 * \(\min(b_r, \max_q t_q - t_r)\): until then not all ranks \(q\) of the group have called. The
 * backend {@code tcp} knows when the calls of other processes arrive. The backend {@code nccl} does
 * not: there, the time that a rank waits for another process counts as the operation.
 */
final class TimeSplit implements AutoCloseable {
    static final String WAITING = "waiting for ranks";
    static final String UPDATE = "update";
    private static final String OUTSIDE = "between passes";
    private static final List<Direction> PASSES =
            List.of(Direction.FORWARD, Direction.BACKWARD, Direction.STEP);

    private final List<Rank> ranks;

    /** Begins to watch the ranks of a pool, which stand still. */
    TimeSplit(RankPool pool) {
        ranks =
                IntStream.range(0, pool.size())
                        .mapToObj(i -> AbstractCommunicator.of(pool.getContext(i).getWorld()))
                        .map(world -> new Rank(world.getRecorder()))
                        .toList();
    }

    /**
     * Splits the time since the last call, while the ranks stand still.
     *
     * @param wall this time in nanoseconds
     * @return the nanoseconds by what they were spent on, for each rank
     */
    List<Map<String, Long>> take(long wall) {
        List<List<Call>> calls = ranks.stream().map(Rank::takeCalls).toList();
        Map<Operation, Long> lastCalled = new HashMap<>();
        for (List<Call> each : calls) {
            for (Call one : each) { // a time may have gone past the largest number
                lastCalled.merge(
                        one.operation(), one.call.getIssued(), (a, b) -> a - b >= 0 ? a : b);
            }
        }
        List<Map<String, Long>> splits = new ArrayList<>();
        for (int i = 0; i < ranks.size(); i++) {
            splits.add(split(ranks.get(i), calls.get(i), lastCalled, wall));
        }
        return splits;
    }

    private static Map<String, Long> split(
            Rank rank, List<Call> calls, Map<Operation, Long> lastCalled, long wall) {
        Map<String, Long> split = new LinkedHashMap<>();
        PASSES.forEach(pass -> split.put(computing(pass), rank.takeNanos(pass)));
        long outside = wall - split.values().stream().mapToLong(Long::longValue).sum();
        long waiting = 0;
        for (Call each : calls) {
            if (PASSES.contains(each.direction)) { // others are a part of what is outside
                long blocked = each.call.getBlocked();
                long until =
                        Objects.requireNonNull(lastCalled.get(each.operation()))
                                - each.call.getIssued();
                long waited = Math.min(blocked, Math.max(until, each.call.getWaited()));
                waiting += waited;
                split.merge(computing(each.direction), -blocked, Long::sum);
                split.merge(each.call.getCollective().toString(), blocked - waited, Long::sum);
            }
        }
        split.put(WAITING, waiting);
        split.put(OUTSIDE, Math.max(0, outside));
        return split;
    }

    /** Returns what a rank computes in a pass. */
    private static String computing(Direction pass) {
        return pass == Direction.STEP ? UPDATE : pass.toString();
    }

    /** Watches no longer. */
    @Override
    public void close() {
        ranks.forEach(rank -> rank.recorder.removeListener(rank));
    }

    /** Which calls of several ranks are one operation. */
    private record Operation(String group, long sequence) {}

    /** A call, and what the rank was doing. */
    private record Call(CollectiveCall call, Direction direction) {
        Operation operation() {
            return new Operation(call.getGroup(), call.getSequence());
        }
    }

    /** What a rank has been doing since it was last asked. */
    private static final class Rank implements FlightRecorder.Listener {

        /** Of a step; an evaluation between two steps may have more, which nobody asks for. */
        private static final int MOST = 100_000;

        private final FlightRecorder recorder;
        private final Map<Direction, Long> before = new EnumMap<>(Direction.class);
        private List<Call> calls = new ArrayList<>();

        Rank(FlightRecorder recorder) {
            this.recorder = recorder;
            recorder.addListener(this);
            PASSES.forEach(this::takeNanos);
        }

        @Override
        public synchronized void called(CollectiveCall call, int size, Direction direction) {
            if (calls.size() < MOST) {
                calls.add(new Call(call, direction));
            }
        }

        synchronized List<Call> takeCalls() {
            List<Call> taken = calls;
            calls = new ArrayList<>();
            return taken;
        }

        /** Returns the time of a pass, its operations included. */
        long takeNanos(Direction pass) {
            long now = recorder.getNanos(pass);
            Long last = before.put(pass, now);
            return last == null ? 0 : now - last;
        }
    }
}
