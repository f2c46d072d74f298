package io.djltp.examples.train;

import io.djltp.job.Job;

/** The ranks of a command that trains. */
public interface JobRanks {

    /**
     * Returns the number of ranks of all processes.
     *
     * @return the number
     */
    int count();

    /**
     * Returns on which devices they are.
     *
     * @return the options
     */
    DeviceOptions where();

    /**
     * Joins the job that a launcher has started.
     *
     * @return the job, or {@code null} if this process is alone
     */
    default Job join() {
        return where().join(count());
    }

    /**
     * Refuses devices that are not there, on all processes alike.
     *
     * @param job the job, or {@code null}
     */
    default void checkDevices(Job job) {
        where().checkDevices(job, count());
    }
}
