package io.djltp.internal.events;

import jdk.jfr.Category;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;

/** The wait of a rank for the other ranks of a group. */
@Name("io.djltp.CollectiveWait")
@Label("Collective Wait")
@Description(
        "From the arrival of a rank in a collective operation until all ranks of the group have"
                + " arrived. The backend nccl has none")
@Category(FlightEvents.CATEGORY)
@StackTrace(false)
public final class CollectiveWaitEvent extends Event {

    @Label("Rank")
    private final int rank;

    @Label("Operation")
    private final String operation;

    @Label("Issuer")
    private final String issuer;

    @Label("Group")
    private final String group;

    @Label("Call")
    private final long call;

    CollectiveWaitEvent(int rank, String operation, String issuer, String group, long call) {
        this.rank = rank;
        this.operation = operation;
        this.issuer = issuer;
        this.group = group;
        this.call = call;
        begin();
    }
}
