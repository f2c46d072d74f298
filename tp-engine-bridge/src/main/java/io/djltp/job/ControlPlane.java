package io.djltp.job;

import java.util.concurrent.CompletableFuture;

/** How a process of a job talks with the others: as the master, or to the master. */
interface ControlPlane {

    /** Sends a part to all; the parts of all come, or the job fails. One call at a time. */
    CompletableFuture<byte[][]> exchange(String what, byte[] mine);

    /** Tells all that the job has failed. */
    void fail(JobFailedException failure);

    /**
     * Returns what a process last said that it does, or nothing. Process 0 hears all, the others
     * hear process 0 alone.
     */
    String lastStatus(int process);

    /** Says goodbye and ends the connections. */
    void close();
}
