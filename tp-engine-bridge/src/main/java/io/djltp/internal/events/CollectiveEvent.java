package io.djltp.internal.events;

import jdk.jfr.Category;
import jdk.jfr.DataAmount;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;

/** A collective operation of a rank in a group of several ranks. */
@Name("io.djltp.Collective")
@Label("Collective Operation")
@Description("From the call of a rank until the operation is complete on that rank")
@Category(FlightEvents.CATEGORY)
@StackTrace(false)
public final class CollectiveEvent extends Event {

    @Label("Rank")
    private final int rank;

    @Label("Operation")
    private final String operation;

    @Label("Bytes")
    @Description("The size of the tensor that the rank puts in")
    @DataAmount
    private final long bytes;

    @Label("Issuer")
    @Description("The layer, loss or gradient that calls the operation")
    private final String issuer;

    @Label("Pass")
    private final String pass;

    @Label("Group")
    @Description("Empty for the group of all ranks")
    private final String group;

    @Label("Group Size")
    private final int groupSize;

    @Label("Call")
    @Description("The number of the call in its group, the same on all ranks of the group")
    private final long call;

    @Label("Backend")
    private final String backend;

    /**
     * Begins the event.
     *
     * @param rank the rank in the group of all ranks
     * @param pass what the rank is doing
     * @param backend the name of the backend
     * @param operation the operation
     * @param bytes the size of what the rank puts in
     * @param issuer who has called, or empty
     * @param group the name of the group
     * @param groupSize the number of its ranks
     * @param call the number of the call in its group
     */
    public CollectiveEvent(
            int rank,
            String pass,
            String backend,
            String operation,
            long bytes,
            String issuer,
            String group,
            int groupSize,
            long call) {
        this.rank = rank;
        this.pass = pass;
        this.backend = backend;
        this.operation = operation;
        this.bytes = bytes;
        this.issuer = issuer;
        this.group = group;
        this.groupSize = groupSize;
        this.call = call;
        begin();
    }

    /**
     * Begins the event of the wait in this operation.
     *
     * @return the event
     */
    public CollectiveWaitEvent beginWait() {
        return new CollectiveWaitEvent(rank, operation, issuer, group, call);
    }
}
