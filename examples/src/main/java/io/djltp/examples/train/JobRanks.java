package io.djltp.examples.train;

import io.djltp.job.Job;

/** The ranks of a command that trains. */
public interface JobRanks {

    /**
     * Joins the job that a launcher has started.
     *
     * @return the job, or {@code null} if this process is alone
     */
    Job join();

    /**
     * Refuses devices that are not there, on all processes alike.
     *
     * @param job the job, or {@code null}
     */
    void checkDevices(Job job);
}
