package io.djltp.internal.events;

import jdk.jfr.Category;
import jdk.jfr.DataAmount;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;

/** The save of a checkpoint. */
@Name("io.djltp.CheckpointSave")
@Label("Checkpoint Save")
@Description(
        "What one process writes of a checkpoint, in the background. The process of rank 0 also"
                + " waits for the other processes")
@Category(FlightEvents.CATEGORY)
@StackTrace(false)
public final class CheckpointEvent extends Event {

    @Label("Step")
    @Description("The number of steps after which the state was taken")
    private final long step;

    @Label("Folder")
    private final String folder;

    @Label("Bytes")
    @Description("The size of the files that this process has written")
    @DataAmount
    private long bytes;

    @Label("Complete")
    private boolean complete;

    /**
     * Begins the event.
     *
     * @param step the number of steps after which the state was taken
     * @param folder the folder of the checkpoints
     */
    public CheckpointEvent(long step, String folder) {
        this.step = step;
        this.folder = folder;
        begin();
    }

    /**
     * Notes that this process has written its part, and that of rank 0 the whole checkpoint.
     *
     * @param size the bytes that this process has written
     */
    public void setWritten(long size) {
        bytes = size;
        complete = true;
    }
}
