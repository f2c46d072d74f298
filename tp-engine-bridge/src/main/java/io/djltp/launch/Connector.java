package io.djltp.launch;

import ai.djl.Device;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.Communicator;
import io.djltp.collective.GroupFailure;
import io.djltp.collective.local.LocalCommunicator;
import io.djltp.collective.tcp.TcpCommunicator;
import io.djltp.job.Job;
import io.djltp.job.JobFailedException;
import io.djltp.job.JobOptions;
import io.djltp.job.LaunchEnvironment;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.StringJoiner;

/** Makes the communicators of a process's ranks with the backend that fits. */
public final class Connector {

    private static final Logger logger = LoggerFactory.getLogger(Connector.class);

    /** How long a broken connection may wait for its reason. */
    private static final Duration REASON_TIME = Duration.ofSeconds(3);

    private static final String PROPERTY = "io.djltp.backend";

    private Connector() {}

    /**
     * Returns the backend that will be used. The system property {@code io.djltp.backend} says what
     * {@link Backend#AUTO} means, for those that cannot change the program.
     *
     * @param wanted the backend that was asked for
     * @param devices the devices of this process's ranks
     * @param job the job, or {@code null} if all ranks are in this process
     * @return the backend, never {@link Backend#AUTO}
     */
    public static Backend choose(Backend wanted, List<Device> devices, Job job) {
        String property = System.getProperty(PROPERTY, "auto").toUpperCase(Locale.ROOT);
        Backend named = wanted == Backend.AUTO ? Backend.valueOf(property) : wanted;
        if (named != Backend.AUTO) {
            return named;
        }
        boolean alone = job == null || job.getRanks() == 1;
        if (devices.stream().anyMatch(Device::isGpu)) {
            return alone && devices.size() == 1 ? Backend.LOCAL : Backend.NCCL;
        }
        if (job == null || job.getProcesses() == 1) {
            return Backend.LOCAL;
        }
        return job.getLocalRanks() == 1 && MpiBackend.isLaunched() ? Backend.MPI : Backend.TCP;
    }

    /**
     * Connects the ranks of this process with all ranks of the job. All processes call it.
     *
     * @param wanted the backend
     * @param devices the devices of this process's ranks
     * @param job the job, or {@code null} if all ranks are in this process
     * @param timeout how long a rank waits for the others in an operation
     * @return the communicators of this process's ranks
     * @throws IllegalArgumentException if the backend does not fit the devices or the job
     * @throws JobFailedException if another process cannot use the backend
     */
    public static List<Communicator> connect(
            Backend wanted, List<Device> devices, Job job, Duration timeout) {
        Backend backend = choose(wanted, devices, job);
        String obstacle = obstacle(backend, devices, job);
        if (job == null) {
            if (obstacle != null) {
                throw new IllegalArgumentException(obstacle);
            }
        } else {
            agree(backend, timeout, job);
            job.check("The backend " + backend, obstacle);
        }
        logger.debug("Collective operations on {} through {}", devices, backend);
        List<Communicator> group = create(backend, devices, job, timeout);
        if (job != null) {
            job.onFailure(failure -> group.forEach(communicator -> communicator.abort(failure)));
            job.setStatus(() -> status(group));
        }
        return group;
    }

    private static void agree(Backend backend, Duration timeout, Job job) {
        String mine = backend + " with a time-out of " + timeout.toMillis() + " ms";
        byte[][] all = job.exchange("backend", mine.getBytes(StandardCharsets.UTF_8));
        for (int i = 0; i < all.length; i++) {
            String other = new String(all[i], StandardCharsets.UTF_8);
            String first = new String(all[0], StandardCharsets.UTF_8);
            if (!other.equals(first)) {
                throw new IllegalArgumentException(
                        "The processes want different backends: process 0 "
                                + first
                                + ", process "
                                + i
                                + " "
                                + other
                                + ": start all with the same settings");
            }
        }
    }

    /**
     * Says why a backend cannot be used by this process. Never throws.
     *
     * @param backend the backend, not {@link Backend#AUTO}
     * @param devices the devices of this process's ranks
     * @param job the job, or {@code null} if all ranks are in this process
     * @return the reason, or nothing if it can be used
     */
    public static Optional<String> whyNot(Backend backend, List<Device> devices, Job job) {
        return Optional.ofNullable(obstacle(backend, devices, job));
    }

    /** Returns why a backend cannot be used here, or {@code null} if it can. */
    private static String obstacle(Backend backend, List<Device> devices, Job job) {
        boolean gpus = devices.stream().anyMatch(Device::isGpu);
        boolean alone = devices.size() == (job == null ? devices.size() : job.getRanks());
        switch (backend) {
            case LOCAL:
                if (!alone) {
                    return "the backend local reaches the ranks of one process only, and the job"
                            + " has "
                            + job.getProcesses()
                            + " processes: use tcp, mpi or nccl";
                }
                return gpus && devices.size() > 1
                        ? "the backend local is for CPUs, not for " + devices + ": use nccl"
                        : null;
            case TCP:
                return gpus ? "the backend tcp is for CPUs, not for " + devices : null;
            case MPI:
                return MpiBackend.obstacle(devices, job);
            default:
                return NcclBackend.obstacle(devices);
        }
    }

    private static List<Communicator> create(
            Backend backend, List<Device> devices, Job job, Duration timeout) {
        switch (backend) {
            case LOCAL:
                return LocalCommunicator.create(devices.size(), timeout);
            case TCP:
                return connectSockets(devices.size(), job, timeout);
            case MPI:
                return MpiBackend.connect(timeout);
            default:
                return NcclBackend.connect(devices, job, timeout);
        }
    }

    private static List<Communicator> connectSockets(int ranks, Job job, Duration timeout) {
        if (job == null) { // all ranks are here: to try the backend
            LaunchEnvironment alone = new LaunchEnvironment("none", 0, 1, 0, "127.0.0.1", 0);
            try (Job own = Job.join(alone, JobOptions.builder().setRanks(ranks).build())) {
                return connectSockets(ranks, own, timeout);
            }
        }
        SocketChannel[][] mesh = job.connectMesh("world");
        List<Communicator> group = new ArrayList<>(mesh.length);
        GroupFailure failure = new GroupFailure(); // the ranks of a process fail together
        try {
            for (int i = 0; i < mesh.length; i++) {
                group.add(
                        new TcpCommunicator(
                                mesh[i],
                                job.getFirstRank() + i,
                                timeout,
                                failure,
                                loss -> explain(job, loss)));
            }
        } catch (IOException e) {
            throw new CollectiveException("the sockets of the ranks cannot be used: " + e, e);
        }
        return group;
    }

    /** Finds out why a rank was lost: that it failed or died is known to the job. */
    static CollectiveException explain(Job job, CollectiveException loss) {
        JobFailedException reason = job.awaitFailure(REASON_TIME);
        return reason == null ? loss : new CollectiveException(reason.getMessage(), reason);
    }

    private static String status(List<Communicator> group) {
        StringJoiner text = new StringJoiner("; ");
        for (Communicator communicator : group) {
            text.add("rank " + communicator.getRank() + " " + communicator.getRecorder().latest());
        }
        return text.toString();
    }
}
