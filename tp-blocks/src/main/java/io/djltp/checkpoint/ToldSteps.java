package io.djltp.checkpoint;

/**
 * The steps that a listener is told of. DJL tells its listeners of a batch before the step, and
 * never that a step is over: that comes from {@link ResumedData} or from a loop of the user's own.
 * A training that does neither would be saved never, without a word.
 */
final class ToldSteps {

    private long seen;
    private boolean told; // in this epoch

    /** Begins after a step. */
    void begin(long step) {
        seen = step;
    }

    /** Notes that somebody tells of steps. */
    void expect() {
        told = true;
    }

    /** Notes how many steps are done; returns whether there is one more than before. */
    boolean add(long step) {
        told = true;
        boolean more = step != seen;
        seen = step;
        return more;
    }

    /** Notes that an epoch is over, maybe of one batch; the next one may be another loop's. */
    void endEpoch(SaveSchedule schedule, long step) {
        check(schedule, step);
        told = false;
    }

    /**
     * Checks that nothing is missed.
     *
     * @throws IllegalStateException if a step was made that nobody has told of, after which a
     *     checkpoint may be due
     */
    void check(SaveSchedule schedule, long step) {
        if (!told && step != seen && schedule.isAfterSteps()) {
            throw new IllegalStateException(
                    "The CheckpointListener is not told of the steps, and would save none of them:"
                            + " give EasyTrain.fit its checkpoints.resumed(trainingSet); a loop of"
                            + " your own calls checkpoints.endStep() after trainer.step()");
        }
    }
}
