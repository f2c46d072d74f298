package io.djltp.spark;

import org.jspecify.annotations.Nullable;

import java.io.Serializable;

/**
 * What a task of a job does that needs no rows of Spark's.
 *
 * @param <R> the type of the result
 */
@FunctionalInterface
public interface RankTraining<R extends @Nullable Object> extends Serializable {

    /**
     * Runs a task's part of the job.
     *
     * @param ranks the ranks of the task, and of the job
     * @return the result, of which that of the task with rank 0 reaches the driver
     * @throws Exception if the task fails, which ends the job
     */
    R call(SparkRanks ranks) throws Exception;
}
