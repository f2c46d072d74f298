package io.djltp.launch;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.job.Job;
import io.djltp.job.JobOptions;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.ServerSocketChannel;
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
    public static @Nullable Job join(Map<String, String> environment, int ranks, Duration timeout) {
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
        return Job.join(found.get(), options.build());
    }

    /**
     * Joins the job of a program that starts its processes by itself: no variables are read but
     * {@code TP_SECRET}, and that only if the options hold no secret.
     *
     * <p>Process 0 binds a port, tells the others by means of the program's own where it is and the
     * secret, and joins with the bound channel: nobody else can take the port in between.
     *
     * <pre>{@code
     * // in process 0
     * ServerSocketChannel bound = MasterPort.bindEphemeral(host);
     * tellAll(host, MasterPort.getPort(bound), secret);
     * // in all
     * LaunchEnvironment environment =
     *         new LaunchEnvironment("mine", process, processes, localProcess, host, port);
     * JobOptions options = JobOptions.builder().setRanks(ranks).optSecret(secret).build();
     * try (Job job = Launcher.join(environment, options, process == 0 ? bound : null)) {
     *     // ParallelConfig.builder().setRanks(ranks).optJob(job)
     * }
     * }</pre>
     *
     * @param environment which process this is, and where process 0 is
     * @param options the ranks of all processes, their secret, and how long they wait
     * @param bound in process 0, the channel at which it listens, see {@link
     *     io.djltp.environment.MasterPort}, or {@code null} to bind the port of the environment;
     *     {@code null} in all others. It is closed with the job, and if joining fails
     * @return the job, or {@code null} if this process is the only one
     * @throws IllegalArgumentException if the ranks do not fit
     * @throws io.djltp.job.JobFailedException if not all processes come in time, or they do not fit
     *     together
     */
    public static @Nullable Job join(
            LaunchEnvironment environment,
            JobOptions options,
            @Nullable ServerSocketChannel bound) {
        if (environment.processes() > 1) {
            return Job.join(environment, options, bound);
        }
        try {
            if (bound != null) {
                bound.close();
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        return null;
    }
}
