package io.djltp.job;

import java.time.Duration;

/** A process of a job in a JVM of its own: it joins, and waits until the job fails. */
public final class JobProcess {

    private JobProcess() {}

    /**
     * Runs the process.
     *
     * @param arguments its number, the number of processes, the port, the heartbeat time-out in
     *     milliseconds, and the time in seconds in which it must join
     * @throws Exception if it cannot join
     */
    public static void main(String[] arguments) throws Exception {
        int process = Integer.parseInt(arguments[0]);
        int processes = Integer.parseInt(arguments[1]);
        JobOptions options =
                Jobs.options(2 * processes)
                        .optHeartbeatTimeout(Duration.ofMillis(Long.parseLong(arguments[3])))
                        .optTimeout(Duration.ofSeconds(Long.parseLong(arguments[4])))
                        .build();
        int port = Integer.parseInt(arguments[2]);
        try (Job job = Jobs.join(process, processes, port, options)) {
            job.setStatus(() -> "step 7");
            JobFailedException failure = failure(job);
            print(failure == null ? "no failure" : failure.getMessage());
        }
    }

    // another process may come out of the exchange, and end process 0, while this one is still in
    // it
    private static JobFailedException failure(Job job) {
        try {
            job.exchange("up", new byte[0]);
            return job.awaitFailure(Duration.ofSeconds(40));
        } catch (JobFailedException e) {
            return e;
        }
    }

    // what it prints is what the test reads
    private static void print(String text) {
        System.out.println(text);
    }
}
