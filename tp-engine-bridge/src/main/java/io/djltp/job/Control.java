package io.djltp.job;

import java.util.function.Supplier;

/** How a process of a job talks with the others: as the master, to the master, or with nobody. */
interface Control {

    /** Sends a part to all and returns the parts of all. One call at a time. */
    byte[][] exchange(String what, byte[] mine) throws InterruptedException;

    /** Tells all that the job has failed. */
    void fail(JobFailedException failure);

    /** Says what is told with each heartbeat. */
    void setStatus(Supplier<String> status);

    /** Says goodbye and ends the connections. */
    void close();
}
