package io.djltp.internal.events;

import jdk.jfr.Category;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;

/** What one rank computes of a step. */
@Name("io.djltp.Pass")
@Label("Pass")
@Description(
        "What one rank computes: forward (of evaluations too, and with the loss if labels are known),"
                + " loss (computed after forward, as in evaluations), backward or step")
@Category(FlightEvents.CATEGORY)
@StackTrace(false)
public final class PassEvent extends Event {

    @Label("Rank")
    private final int rank;

    @Label("Pass")
    private final String pass;

    /**
     * Begins the event.
     *
     * @param rank the rank in the group of all ranks
     * @param pass what it computes
     */
    public PassEvent(int rank, String pass) {
        this.rank = rank;
        this.pass = pass;
        begin();
    }
}
