package io.djltp.spark;

import org.apache.spark.SparkContext;

import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The tasks that a cluster can run at the same time. All tasks of a barrier stage start together;
 * where there are fewer slots, Spark asks again for ten minutes before it gives up.
 */
final class BarrierSlots {

    private static final Pattern LOCAL_CLUSTER = Pattern.compile("local-cluster\\[\\s*(\\d+).*");
    private static final String WAITING = "spark.scheduler.maxRegisteredResourcesWaitingTime";
    private static final long INTERVAL = 100; // milliseconds

    private final SparkContext context;

    BarrierSlots(SparkContext context) {
        this.context = context;
    }

    /**
     * Checks that there are enough slots, waiting for executors that are still to come.
     *
     * @param tasks the number of tasks
     * @param ranksPerTask the number of ranks of each
     */
    void check(int tasks, int ranksPerTask) {
        long patience = context.conf().getTimeAsSeconds(WAITING, "30s");
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(patience);
        boolean complete = isComplete(); // asked first: of one that comes meanwhile the slots count
        int slots = slots();
        while (slots < tasks && !complete && System.nanoTime() < end) {
            try {
                Thread.sleep(INTERVAL);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new SparkJobException("Interrupted while waiting for executors", e);
            }
            complete = isComplete();
            slots = slots();
        }
        if (slots < tasks) {
            throw new IllegalStateException(
                    ("%d ranks, %d in each task, need %d tasks that run at the same time, and there"
                                    + " are %d slots on %d executors of %s cores (spark.task.cpus"
                                    + " is %s)%s: add executors (--num-executors), ask for fewer"
                                    + " ranks, or for more ranks in each task (optRanksPerTask, or"
                                    + " setRanksPerTask of a classifier)")
                            .formatted(
                                    tasks * ranksPerTask,
                                    ranksPerTask,
                                    tasks,
                                    slots,
                                    executors(),
                                    context.conf().get("spark.executor.cores", "all their"),
                                    context.conf().get("spark.task.cpus", "1"),
                                    complete
                                            ? ""
                                            : ", after waiting "
                                                    + patience
                                                    + " s for executors to come ("
                                                    + WAITING
                                                    + ")"));
        }
    }

    /**
     * Asks Spark for what it itself checks before a barrier stage. The call is public in Java, and
     * private to Spark in Scala; what is public everywhere knows less: the status tracker has
     * executors without their cores, and one that was lost until Spark's listeners have heard of
     * it, the default parallelism is never below 2, a listener hears of executors that come after
     * it only, and none of them counts what a task needs of GPUs.
     */
    private int slots() {
        return context.maxNumConcurrentTasks(
                context.resourceProfileManager().defaultResourceProfile());
    }

    /** Returns whether all executors have come that were asked for, as far as that is known. */
    private boolean isComplete() {
        if (context.isLocal()) {
            return true;
        }
        Matcher localCluster = LOCAL_CLUSTER.matcher(context.master());
        int wanted =
                localCluster.matches()
                        ? Integer.parseInt(localCluster.group(1))
                        : context.conf().getInt("spark.executor.instances", Integer.MAX_VALUE);
        return executors() >= wanted;
    }

    /** Counts the executors that the slots are of, by a call like that of {@link #slots}. */
    private int executors() {
        return context.isLocal() ? 1 : context.getExecutorIds().size(); // in local mode the driver
    }
}
