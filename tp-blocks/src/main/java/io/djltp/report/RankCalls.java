package io.djltp.report;

import io.djltp.collective.CallListener;
import io.djltp.collective.CollectiveCall;
import io.djltp.collective.Direction;
import io.djltp.collective.FlightRecorder;

import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;

/** What a rank has been doing since it was last asked. */
final class RankCalls implements CallListener {

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
