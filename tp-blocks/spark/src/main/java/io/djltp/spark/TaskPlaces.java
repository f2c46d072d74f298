package io.djltp.spark;

import org.apache.spark.BarrierTaskContext;
import org.apache.spark.SparkEnv;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Where the tasks of a job run, as all of them know it.
 *
 * @param task the number of this task
 * @param ranksPerTask the number of ranks of each task
 * @param all the tasks
 */
record TaskPlaces(int task, int ranksPerTask, List<Place> all) {

    private static final String SEPARATOR = "\t";

    /**
     * Where a task runs.
     *
     * @param host the host that Spark knows the executor by
     * @param executor the executor's id
     * @param pid its process id
     * @param port of task 0, the port at which the job is joined; else 0
     * @param secret of task 0, the job's secret; else empty
     */
    record Place(String host, String executor, long pid, int port, String secret) {

        private String encode() {
            return String.join(
                    SEPARATOR, host, executor, Long.toString(pid), Integer.toString(port), secret);
        }

        private static Place decode(String text) {
            String[] parts = text.split(SEPARATOR, -1);
            return new Place(
                    parts[0],
                    parts[1],
                    Long.parseLong(parts[2]),
                    Integer.parseInt(parts[3]),
                    parts[4]);
        }

        /** Says nothing of the secret, which would end in a log. */
        @Override
        public String toString() {
            return "executor " + executor + " on " + host + ", pid " + pid;
        }
    }

    /** Tells the other tasks where this one is, and learns where they are. */
    static TaskPlaces exchange(
            BarrierTaskContext context, int ranksPerTask, int port, String secret) {
        Place own =
                new Place(
                        hostOf(context, context.partitionId()),
                        SparkEnv.get().executorId(),
                        ProcessHandle.current().pid(),
                        port,
                        secret);
        List<Place> all =
                Arrays.stream(context.allGather(own.encode())).map(Place::decode).toList();
        return new TaskPlaces(context.partitionId(), ranksPerTask, all);
    }

    /** Returns the host of a task, as Spark's own services reach it. */
    static String hostOf(BarrierTaskContext context, int task) {
        String address = context.getTaskInfos()[task].address();
        int colon = address.lastIndexOf(':');
        boolean withPort = colon > 0 && (address.indexOf(':') == colon || address.contains("]:"));
        return withPort ? address.substring(0, colon) : address;
    }

    /** Returns the number of this task among those of its host. */
    int localTask() {
        String host = all.get(task).host();
        return (int) all.subList(0, task).stream().filter(each -> each.host().equals(host)).count();
    }

    /**
     * Checks that no two tasks are in one JVM: the ranks of a JVM are threads of one process, which
     * share its generators of random numbers.
     */
    void checkExecutors() {
        Map<String, List<Integer>> tasks = new HashMap<>();
        for (int i = 0; i < all.size(); i++) {
            String jvm = all.get(i).host() + SEPARATOR + all.get(i).pid();
            tasks.computeIfAbsent(jvm, key -> new ArrayList<>()).add(i);
        }
        for (List<Integer> together : tasks.values()) {
            if (together.size() > 1) {
                throw new IllegalStateException(
                        ("Tasks %s run in one JVM, %s, where ranks belong into one task: set"
                                        + " spark.task.cpus to spark.executor.cores so that an"
                                        + " executor has one task, and optRanksPerTask, or"
                                        + " setRanksPerTask of a classifier, to the ranks that"
                                        + " it shall have")
                                .formatted(together, all.get(together.get(0))));
            }
        }
    }

    String describe(int other) {
        int first = other * ranksPerTask;
        String ranks =
                ranksPerTask == 1
                        ? "rank " + first
                        : "ranks " + first + "-" + (first + ranksPerTask - 1);
        return ranks + " (task " + other + " of " + all.size() + ", " + all.get(other) + ")";
    }
}
