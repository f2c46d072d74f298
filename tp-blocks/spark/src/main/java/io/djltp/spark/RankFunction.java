package io.djltp.spark;

import org.jspecify.annotations.Nullable;

import java.io.Serializable;
import java.util.Iterator;

/**
 * What a task of a job does, with the ranks that it has. All tasks run the same function, and it
 * must do the same in all of them.
 *
 * @param <T> the type of the rows
 * @param <R> the type of the result
 */
@FunctionalInterface
public interface RankFunction<T, R extends @Nullable Object> extends Serializable {

    /**
     * Runs a task's part of the job.
     *
     * @param ranks the ranks of the task, and of the job
     * @param rows the rows of the task's partition
     * @return the result, of which that of the task with rank 0 reaches the driver
     * @throws Exception if the task fails, which ends the job
     */
    R call(SparkRanks ranks, Iterator<T> rows) throws Exception;
}
