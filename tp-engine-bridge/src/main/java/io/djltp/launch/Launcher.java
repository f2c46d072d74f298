package io.djltp.launch;

import io.djltp.job.Job;
import io.djltp.job.JobOptions;
import io.djltp.job.LaunchEnvironment;

import java.time.Duration;
import java.util.Map;
import java.util.Optional;

/**
 * Joins the job that a launcher has started: torchrun, Kubernetes, Slurm, mpirun, or whoever sets
 * {@code RANK}, {@code WORLD_SIZE}, {@code MASTER_ADDR} and {@code MASTER_PORT}.
 *
 * <pre>{@code
 * try (Job job = Launcher.join(System.getenv(), 4, Duration.ofMinutes(5))) {
 *     ParallelConfig ranks =
 *             ParallelConfig.builder()
 *                     .setMode(ParallelMode.TENSOR)
 *                     .setRanks(4)
 *                     .optJob(job)
 *                     .build();
 *     // from here on as with ranks of one process
 * }
 * }</pre>
 */
public final class Launcher {

    private Launcher() {}

    /**
     * Returns how many processes a launcher has started.
     *
     * @param environment the environment variables
     * @return the number of processes, 1 if there is no launcher
     * @throws IllegalArgumentException if the variables contradict each other
     */
    public static int processes(Map<String, String> environment) {
        return LaunchEnvironment.detect(environment).map(LaunchEnvironment::processes).orElse(1);
    }

    /**
     * Returns the number of this process.
     *
     * @param environment the environment variables
     * @return the number, 0 if there is no launcher
     */
    public static int process(Map<String, String> environment) {
        return LaunchEnvironment.detect(environment).map(LaunchEnvironment::process).orElse(0);
    }

    /**
     * Returns the number of this process among those of its machine.
     *
     * @param environment the environment variables
     * @return the number, 0 if there is no launcher
     */
    public static int localProcess(Map<String, String> environment) {
        return LaunchEnvironment.detect(environment).map(LaunchEnvironment::localProcess).orElse(0);
    }

    /**
     * Joins the job, and waits until all processes have come.
     *
     * @param environment the environment variables
     * @param ranks the number of ranks of all processes: a multiple of their number
     * @param timeout how long to wait for the other processes to come, and after how long a process
     *     that says nothing counts as lost
     * @return the job, or {@code null} if this process is the only one
     * @throws IllegalArgumentException if the variables contradict each other or the ranks
     * @throws io.djltp.job.JobFailedException if not all processes come in time, or they do not fit
     *     together
     */
    public static Job join(Map<String, String> environment, int ranks, Duration timeout) {
        Optional<LaunchEnvironment> found = LaunchEnvironment.detect(environment);
        if (found.isEmpty() || found.get().processes() == 1) {
            return null;
        }
        JobOptions.Builder options =
                JobOptions.builder()
                        .setRanks(ranks)
                        .optEnvironment(environment)
                        .optTimeout(timeout)
                        .optHeartbeatTimeout(timeout);
        if (found.get().masterAddress() == null) {
            return MpiRendezvous.join(found.get(), options);
        }
        return Job.join(found.get(), options.build());
    }
}
