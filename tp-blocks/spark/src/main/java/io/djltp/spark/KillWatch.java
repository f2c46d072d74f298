package io.djltp.spark;

import io.djltp.job.Job;

import org.apache.spark.BarrierTaskContext;

/**
 * Ends a task that Spark kills. Spark marks the task, and interrupts its thread if the job's owner
 * has asked for that; ranks that wait for each other see neither.
 */
final class KillWatch implements AutoCloseable {

    private static final long INTERVAL = 200; // milliseconds

    private final Thread watcher;

    private KillWatch(Thread watcher) {
        this.watcher = watcher;
    }

    /**
     * Watches the task of this thread.
     *
     * @param context the task
     * @param job its job, or {@code null} if it is the only task
     * @return what ends the watch
     */
    static KillWatch begin(BarrierTaskContext context, Job job) {
        Thread task = Thread.currentThread();
        Thread watcher = new Thread(() -> watch(context, job, task), "tp-kill-watch");
        watcher.setDaemon(true);
        watcher.start();
        return new KillWatch(watcher);
    }

    private static void watch(BarrierTaskContext context, Job job, Thread task) {
        try {
            while (!context.isInterrupted()) {
                Thread.sleep(INTERVAL);
            }
            if (job != null) {
                job.fail(-1, new InterruptedException("Spark killed the task"));
            }
            task.interrupt();
        } catch (InterruptedException e) {
            // the task has ended
        }
    }

    /** Ends the watch. */
    @Override
    public void close() {
        watcher.interrupt();
        try {
            watcher.join();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
