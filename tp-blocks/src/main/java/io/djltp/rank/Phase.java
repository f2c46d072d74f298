package io.djltp.rank;

import io.djltp.collective.AbstractCommunicator;
import io.djltp.collective.FlightRecorder;
import io.djltp.collective.TrafficTable.Direction;

/** A stretch in which a rank does one thing: for those who count what it communicates meanwhile. */
public final class Phase implements AutoCloseable {

    private final FlightRecorder recorder;
    private final Direction before;

    private Phase(FlightRecorder recorder, Direction direction) {
        this.recorder = recorder;
        before = recorder.setDirection(direction);
    }

    /**
     * Begins a phase.
     *
     * @param context the rank
     * @param direction what it is doing until the phase is closed
     * @return the phase
     */
    public static Phase begin(ParallelContext context, Direction direction) {
        return new Phase(AbstractCommunicator.of(context.getWorld()).getRecorder(), direction);
    }

    /** Ends the phase. */
    @Override
    public void close() {
        recorder.setDirection(before);
    }
}
