package io.djltp.report;

import io.djltp.collective.CollectiveCall;
import io.djltp.collective.FlightRecorder;
import io.djltp.collective.TrafficTable.Direction;

import java.util.ArrayList;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Where the time of a step goes, for each rank of this process: to computing forwards, backwards
 * and the update, to collective operations by kind, to waiting in them for ranks that come later,
 * and to what happens between the passes.
 *
 * <p>A rank that calls an operation at \(t_r\) and stands still in it for \(b_r\) has waited for
 * \(\min(b_r, \max_q t_q - t_r)\): until then not all ranks \(q\) of the group have called. What
 * ranks of other processes do is not seen: waiting for them counts as the operation.
 */
final class TimeSplit {

    static final String WAITING = "waiting for ranks";
    static final String OUTSIDE = "between passes";

    private TimeSplit() {}

    /** Which calls of several ranks are one operation. */
    private record Operation(String group, long sequence) {}

    /**
     * Splits a step.
     *
     * @param ranks what the ranks of this process did
     * @param wall the time of the step in nanoseconds
     * @return the nanoseconds by what they were spent on, for each rank
     */
    static List<Map<String, Long>> of(List<RankCalls.Stretch> ranks, long wall) {
        Map<Operation, Long> lastCalled = new HashMap<>();
        for (RankCalls.Stretch rank : ranks) {
            for (RankCalls.Call call : rank.calls()) {
                lastCalled.merge(keyOf(call.call()), call.call().getIssued(), TimeSplit::later);
            }
        }
        List<Map<String, Long>> splits = new ArrayList<>();
        for (RankCalls.Stretch rank : ranks) {
            splits.add(of(rank, lastCalled, wall));
        }
        return splits;
    }

    private static Operation keyOf(CollectiveCall call) {
        return new Operation(call.getGroup(), call.getSequence());
    }

    /** Returns the later of two times, which may have gone past the largest number. */
    private static long later(long first, long second) {
        return first - second >= 0 ? first : second;
    }

    private static Map<String, Long> of(
            RankCalls.Stretch rank, Map<Operation, Long> lastCalled, long wall) {
        Map<String, Long> split = new LinkedHashMap<>();
        long outside = wall;
        for (Direction direction :
                new Direction[] {Direction.FORWARD, Direction.BACKWARD, Direction.STEP}) {
            long nanos = rank.nanos().get(direction);
            outside -= nanos;
            split.put(computing(direction), nanos);
        }
        long waiting = 0;
        for (RankCalls.Call each : rank.calls()) {
            if (each.direction() == Direction.OTHER) {
                continue; // a part of what is outside
            }
            CollectiveCall call = each.call();
            long blocked = call.getBlocked();
            long until = lastCalled.get(keyOf(call)) - call.getIssued();
            long waited = Math.min(blocked, until);
            waiting += waited;
            split.merge(computing(each.direction()), -blocked, Long::sum);
            split.merge(call.getCollective().toString(), blocked - waited, Long::sum);
        }
        split.put(WAITING, waiting);
        split.put(OUTSIDE, Math.max(0, outside));
        return split;
    }

    /** Returns what a rank computes in a direction. */
    private static String computing(Direction direction) {
        return direction == Direction.STEP ? "update" : direction.toString();
    }

    /** What a rank has been doing since it was last asked. */
    static final class RankCalls implements FlightRecorder.Listener {

        /** Of a step; an evaluation between two steps may have more, which nobody asks for. */
        private static final int MOST = 100_000;

        private final FlightRecorder recorder;
        private final Map<Direction, Long> before = new EnumMap<>(Direction.class);
        private List<Call> calls = new ArrayList<>();

        /**
         * A collective operation.
         *
         * @param call the operation
         * @param size the number of ranks of its group
         * @param direction what the rank was doing
         */
        record Call(CollectiveCall call, int size, Direction direction) {}

        /**
         * What a rank did in a step.
         *
         * @param nanos the time of each direction, its operations included
         * @param calls the operations
         */
        record Stretch(Map<Direction, Long> nanos, List<Call> calls) {}

        RankCalls(FlightRecorder recorder) {
            this.recorder = recorder;
            recorder.addListener(this);
            take();
        }

        @Override
        public synchronized void called(CollectiveCall call, int size, Direction direction) {
            if (calls.size() < MOST) {
                calls.add(new Call(call, size, direction));
            }
        }

        /** Returns what the rank has done since the last call, while it does nothing. */
        synchronized Stretch take() {
            Map<Direction, Long> nanos = new EnumMap<>(Direction.class);
            for (Direction direction : Direction.values()) {
                long now = recorder.getNanos(direction);
                Long last = before.put(direction, now);
                nanos.put(direction, last == null ? 0 : now - last);
            }
            List<Call> taken = calls;
            calls = new ArrayList<>();
            return new Stretch(nanos, taken);
        }

        void end() {
            recorder.removeListener(this);
        }
    }
}
