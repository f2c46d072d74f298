package io.djltp.launch;

import ai.djl.Device;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.Communicator;
import io.djltp.environment.LaunchEnvironment;
import io.djltp.internal.Errors;
import io.djltp.internal.collective.AbstractCommunicator;
import io.djltp.internal.collective.GroupFailure;
import io.djltp.internal.collective.local.LocalCommunicator;
import io.djltp.internal.collective.nccl.NcclCommunicator;
import io.djltp.internal.collective.tcp.TcpCommunicator;
import io.djltp.internal.job.AgreedSettings;
import io.djltp.internal.sockets.RankChannel;
import io.djltp.internal.sockets.RankSockets;
import io.djltp.job.Job;
import io.djltp.job.JobFailedException;
import io.djltp.job.JobOptions;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.stream.Collectors;

/** What carries out the collective operations between ranks. */
public enum Backend {
    /**
     * The one that fits: {@link #NCCL} for GPUs, {@link #LOCAL} for the CPU ranks of one process,
     * {@link #TCP} for those of many. The system property {@code io.djltp.backend} says what it
     * means, for those that cannot change the program.
     */
    AUTO,

    /** Threads of one process that share its memory. */
    LOCAL,

    /** CPU ranks of many processes, connected by sockets. */
    TCP,

    /** GPU ranks, through NVIDIA's NCCL. */
    NCCL;

    private static final Logger logger = LoggerFactory.getLogger(Backend.class);
    private static final String PROPERTY = "io.djltp.backend";

    /** How long a broken connection may wait for its reason. */
    private static final Duration REASON_TIME = Duration.ofSeconds(3);

    /**
     * Returns the backend of a name.
     *
     * @param name the name, in upper or lower case
     * @return the backend
     * @throws IllegalArgumentException if there is none of this name
     */
    public static Backend of(String name) {
        for (Backend backend : values()) {
            if (backend.name().equalsIgnoreCase(name)) {
                return backend;
            }
        }
        String names =
                Arrays.stream(values()).map(Backend::getName).collect(Collectors.joining(", "));
        throw Errors.argument("There is no backend '%s': choose one of %s", name, names);
    }

    /**
     * Returns the name, as it is written in options.
     *
     * @return the name, in lower case
     */
    public String getName() {
        return name().toLowerCase(Locale.ROOT);
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return getName();
    }

    /**
     * Returns the backend that will be used.
     *
     * @param devices the devices of this process's ranks
     * @param job the job, or {@code null} if all ranks are in this process
     * @return this, or what {@link #AUTO} means
     * @throws IllegalArgumentException if the system property names none
     */
    public Backend choose(List<Device> devices, @Nullable Job job) {
        Backend named = this == AUTO ? byProperty() : this;
        if (named != AUTO) {
            return named;
        }
        boolean alone = devices.size() == 1 && (job == null || job.getRanks() == 1);
        if (!alone && devices.stream().anyMatch(Device::isGpu)) {
            return NCCL;
        }
        return job == null || job.getProcesses() == 1 ? LOCAL : TCP;
    }

    private static Backend byProperty() {
        try {
            return of(System.getProperty(PROPERTY, AUTO.getName()));
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(
                    "The system property " + PROPERTY + ": " + e.getMessage(), e);
        }
    }

    /**
     * Says why this process cannot use the backend.
     *
     * @param devices the devices of this process's ranks
     * @param job the job, or {@code null} if all ranks are in this process
     * @return the reason, or nothing if it can be used
     */
    public Optional<String> whyNot(List<Device> devices, @Nullable Job job) {
        return Optional.ofNullable(choose(devices, job).obstacle(devices, job));
    }

    private @Nullable String obstacle(List<Device> devices, @Nullable Job job) {
        if (this == NCCL) {
            return NcclCommunicator.whyNot(firstRank(job), devices).orElse(null);
        }
        if (this == LOCAL && job != null && job.getRanks() != devices.size()) {
            return "the backend local reaches the ranks of one process only, and the job has "
                    + job.getProcesses()
                    + " processes: use tcp or nccl";
        }
        boolean gpus = devices.stream().anyMatch(Device::isGpu);
        if (!gpus || this == LOCAL && devices.size() == 1) {
            return null;
        }
        String remedy = this == LOCAL ? ": use nccl" : "";
        return "the backend " + this + " is for CPUs, not for " + devices + remedy;
    }

    private static int firstRank(@Nullable Job job) {
        return job == null ? 0 : job.getFirstRank();
    }

    /**
     * Connects the ranks of this process with all ranks of the job. All processes call it.
     *
     * @param devices the devices of this process's ranks
     * @param job the job, or {@code null} if all ranks are in this process
     * @param timeout how long a rank waits for the others in an operation
     * @return the communicators of this process's ranks
     * @throws IllegalArgumentException if the backend does not fit the devices or the job
     * @throws JobFailedException if another process cannot use the backend
     */
    public List<Communicator> connect(List<Device> devices, @Nullable Job job, Duration timeout) {
        Backend backend = choose(devices, job);
        String obstacle = backend.obstacle(devices, job);
        if (job == null) {
            if (obstacle != null) {
                throw new IllegalArgumentException(obstacle);
            }
        } else {
            String mine = backend + " with a time-out of " + timeout.toMillis() + " ms";
            AgreedSettings.check(
                    job,
                    "backend",
                    Map.of("the backend", mine),
                    "start all processes with the same settings");
            job.check("The backend " + backend, obstacle);
        }
        logger.debug("Collective operations on {} through {}", devices, backend);
        List<Communicator> group =
                switch (backend) {
                    case NCCL -> connectNccl(devices, job, timeout);
                    case TCP -> connectTcp(devices, job, timeout);
                    default -> LocalCommunicator.create(devices.size(), timeout);
                };
        if (job != null) {
            watch(job, new CopyOnWriteArrayList<>(group));
        }
        return group;
    }

    private static List<Communicator> connectNccl(
            List<Device> devices, @Nullable Job job, Duration timeout) {
        boolean first = job == null || job.getProcess() == 0;
        byte[] id = first ? NcclCommunicator.newUniqueId() : new byte[0];
        if (job != null) {
            id = job.exchange("the unique id of NCCL", id)[0];
        }
        int size = job == null ? devices.size() : job.getRanks();
        return new ArrayList<>(NcclCommunicator.create(id, size, firstRank(job), devices, timeout));
    }

    private static List<Communicator> connectTcp(
            List<Device> devices, @Nullable Job job, Duration timeout) {
        if (job == null) {
            // all ranks are here, and the backend is to be tried
            LaunchEnvironment alone = new LaunchEnvironment("none", 0, 1, 0, "127.0.0.1", 0);
            JobOptions options = JobOptions.builder().setRanks(devices.size()).build();
            try (Job ofOneProcess = Job.join(alone, options)) {
                return connectTcp(devices, ofOneProcess, timeout);
            }
        }
        RankChannel[][] mesh = RankSockets.connect(job, "world");
        List<Communicator> group = new ArrayList<>(mesh.length);
        GroupFailure failure = new GroupFailure(); // the ranks of a process fail together
        try {
            for (int i = 0; i < mesh.length; i++) {
                int rank = job.getFirstRank() + i;
                group.add(
                        new TcpCommunicator(
                                mesh[i], rank, timeout, failure, loss -> explain(job, loss)));
            }
        } catch (IOException e) {
            throw new CollectiveException("the sockets of the ranks cannot be used: " + e, e);
        }
        return group;
    }

    /** Finds out why a rank was lost: that it failed or died is known to the job. */
    private static CollectiveException explain(Job job, CollectiveException loss) {
        JobFailedException reason = job.awaitFailure(REASON_TIME);
        return reason == null ? loss : new CollectiveException(reason.getMessage(), reason);
    }

    /** Lets a job abort communicators, and say what they do, as long as they are open. */
    private static void watch(Job job, List<Communicator> open) {
        Runnable takeBack =
                job.onFailure(failure -> open.forEach(communicator -> communicator.abort(failure)));
        job.setStatus(
                () ->
                        open.stream()
                                .map(
                                        it ->
                                                "rank "
                                                        + it.getRank()
                                                        + " "
                                                        + AbstractCommunicator.of(it)
                                                                .getRecorder()
                                                                .latest())
                                .collect(Collectors.joining("; ")));
        for (Communicator communicator : open) {
            AbstractCommunicator.of(communicator)
                    .onClose(
                            () -> {
                                open.remove(communicator);
                                if (open.isEmpty()) {
                                    takeBack.run();
                                }
                            });
        }
    }
}
