package io.djltp.internal.events;

import jdk.jfr.Category;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;

/** A step of a training. */
@Name("io.djltp.Step")
@Label("Training Step")
@Description("From the first forward pass of a step to the end of the update, in one process")
@Category(FlightEvents.CATEGORY)
@StackTrace(false)
public final class StepEvent extends Event {

    @Label("Step")
    @Description("The number of the step in the training, from 1")
    private long step;

    @Label("Ranks")
    private final int ranks;

    /**
     * Begins the event.
     *
     * @param ranks the number of ranks of all processes
     */
    public StepEvent(int ranks) {
        this.ranks = ranks;
        begin();
    }

    /**
     * Sets the step.
     *
     * @param number the number of the step
     */
    public void setStep(long number) {
        step = number;
    }
}
