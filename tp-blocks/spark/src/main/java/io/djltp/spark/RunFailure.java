package io.djltp.spark;

import org.apache.spark.ExceptionFailure;
import org.apache.spark.scheduler.TaskInfo;
import org.apache.spark.storage.BlockManagerId;

import java.io.NotSerializableException;

/**
 * Why a run failed, as the driver heard it from one of the tasks.
 *
 * @param message who failed where, and why
 * @param own whether that task itself failed: others only learn of it
 * @param lost whether an executor was lost, and not an exception thrown
 * @param cause what was thrown, or {@code null} if it did not reach the driver
 */
record RunFailure(String message, boolean own, boolean lost, Throwable cause) {

    private static final String MEMORY =
            ". If its memory was exceeded: the weights are outside of the Java heap, in what"
                    + " spark.executor.memoryOverhead leaves for them";

    private static final String SILENT =
            ". It stood still, or the network is down: Spark waits spark.network.timeout for its"
                    + " heartbeats";

    /** Returns the failure of a task that threw an exception. */
    static RunFailure of(Throwable exception, ExceptionFailure failure, TaskInfo task) {
        if (exception instanceof RankTaskException) {
            RankTaskException told = (RankTaskException) exception;
            return new RunFailure(told.getMessage(), told.isOwn(), false, told.thrown());
        }
        if (RankTaskException.class.getName().equals(failure.className())) {
            // what was thrown is not serializable: only its words have come
            return new RunFailure(failure.description(), true, false, null);
        }
        if (NotSerializableException.class.getName().equals(failure.className())) {
            String unsent =
                    "The result of task %d on executor %s on %s is not serializable: %s"
                            .formatted(
                                    task.index(),
                                    task.executorId(),
                                    task.host(),
                                    failure.description());
            return new RunFailure(unsent, true, false, exception);
        }
        String message =
                "task %d: executor %s on %s failed: %s: %s"
                        .formatted(
                                task.index(),
                                task.executorId(),
                                task.host(),
                                failure.className(),
                                failure.description());
        return new RunFailure(message, true, false, exception);
    }

    /** Returns the failure of a task whose executor was lost. */
    static RunFailure lost(int task, String executor, String host, String why) {
        String hint = why.contains("heartbeat timed out") ? SILENT : MEMORY; // Spark's words
        String message =
                "task %d: executor %s on %s was lost (%s)%s"
                        .formatted(task, executor, host, why.strip(), hint);
        return new RunFailure(message, true, true, null);
    }

    /** Returns the failure of a task that could not read rows of an executor. */
    static RunFailure unread(int task, BlockManagerId of, String why) {
        String message =
                "task %d: the rows of %s could not be read: %s"
                        .formatted(task, of == null ? "an executor that was lost" : of, why);
        return new RunFailure(message, true, true, null);
    }

    /** Returns whether this says more of the cause than another one. */
    boolean isNearer(RunFailure other) {
        return own && !other.own;
    }
}
