package io.djltp.spark;

import org.apache.spark.TaskContext;

import java.io.IOException;

/** What tasks do to fail. */
final class FailingRanks {

    private FailingRanks() {}

    /** Ends the first executor that maps row 2. */
    static int endOfTheFirst(int row) {
        if (row == 2 && TaskContext.get().attemptNumber() == 0) {
            Runtime.getRuntime().halt(5);
        }
        return row;
    }

    static Object throwOnTask1(SparkRanks ranks) {
        if (ranks.getTask() == 1) {
            throw new IllegalStateException("boom 42");
        }
        return ranks.getJob().exchange("never", new byte[0]);
    }

    static Object dieOnTask1(SparkRanks ranks) throws IOException {
        if (ranks.getTask() == 1) {
            long pid = ProcessHandle.current().pid();
            new ProcessBuilder("kill", "-9", Long.toString(pid)).start();
        }
        return ranks.getJob().exchange("never", new byte[0]).length
                + ranks.getJob().exchange("nor this", new byte[0]).length;
    }
}
