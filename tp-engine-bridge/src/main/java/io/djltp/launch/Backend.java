package io.djltp.launch;

import ai.djl.Device;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.Communicator;
import io.djltp.collective.GroupFailure;
import io.djltp.environment.LaunchEnvironment;
import io.djltp.internal.collective.local.LocalCommunicator;
import io.djltp.internal.collective.nccl.NcclCommunicator;
import io.djltp.internal.collective.tcp.TcpCommunicator;
import io.djltp.internal.sockets.RankSockets;
import io.djltp.job.Job;
import io.djltp.job.JobFailedException;
import io.djltp.job.JobOptions;

import java.io.IOException;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;

/** What carries out the collective operations between ranks; there is one object of each kind. */
public abstract class Backend {

    /**
     * The one that fits: {@link #NCCL} for GPUs, {@link #LOCAL} for the CPU ranks of one process.
     */
    public static final Backend AUTO = new AutoBackend();

    /** Threads of one process that share its memory. */
    public static final Backend LOCAL = new LocalBackend();

    /** CPU ranks of many processes, connected by sockets. */
    public static final Backend TCP = new TcpBackend();

    /** GPU ranks, through NVIDIA's NCCL. */
    public static final Backend NCCL = new NcclBackend();

    private static final List<Backend> ALL = List.of(AUTO, LOCAL, TCP, NCCL);

    private final String name;

    /** Creates a backend. Its class is used through the constants only, which create it. */
    Backend(String name) {
        this.name = name;
    }

    /**
     * Returns all backends.
     *
     * @return the backends, {@link #AUTO} first
     */
    public static List<Backend> values() {
        return ALL;
    }

    /**
     * Returns the backend of a name.
     *
     * @param name the name, in upper or lower case
     * @return the backend
     * @throws IllegalArgumentException if there is none of this name
     */
    public static Backend valueOf(String name) {
        for (Backend backend : ALL) {
            if (backend.name.equalsIgnoreCase(name)) {
                return backend;
            }
        }
        String names = ALL.stream().map(Backend::getName).collect(Collectors.joining(", "));
        throw new IllegalArgumentException(
                "There is no backend '" + name + "': choose one of " + names);
    }

    /**
     * Returns the name, as it is written in options.
     *
     * @return the name, in lower case
     */
    public final String getName() {
        return name;
    }

    /** {@inheritDoc} */
    @Override
    public final String toString() {
        return name;
    }

    /**
     * Says why this process cannot use the backend. Never throws.
     *
     * @param devices the devices of this process's ranks
     * @param job the job, or {@code null} if all ranks are in this process
     * @return the reason, or {@code null} if it can
     */
    abstract String obstacle(List<Device> devices, Job job);

    /**
     * Connects the ranks of this process with all ranks of the job. All processes call it.
     *
     * @param devices the devices of this process's ranks
     * @param job the job, or {@code null} if all ranks are in this process
     * @param timeout how long a rank waits for the others in an operation
     * @return the communicators of this process's ranks
     */
    abstract List<Communicator> connect(List<Device> devices, Job job, Duration timeout);

    /** Stands for the backend that {@link Connector} chooses. */
    private static final class AutoBackend extends Backend {

        AutoBackend() {
            super("auto");
        }

        /** {@inheritDoc} */
        @Override
        String obstacle(List<Device> devices, Job job) {
            return Connector.choose(this, devices, job).obstacle(devices, job);
        }

        /** {@inheritDoc} */
        @Override
        List<Communicator> connect(List<Device> devices, Job job, Duration timeout) {
            return Connector.choose(this, devices, job).connect(devices, job, timeout);
        }
    }

    /** The {@code local} backend: threads of one process. */
    private static final class LocalBackend extends Backend {

        LocalBackend() {
            super("local");
        }

        /** {@inheritDoc} */
        @Override
        String obstacle(List<Device> devices, Job job) {
            if (job != null && job.getRanks() != devices.size()) {
                return "the backend local reaches the ranks of one process only, and the job has "
                        + job.getProcesses()
                        + " processes: use tcp or nccl";
            }
            return devices.size() > 1 && devices.stream().anyMatch(Device::isGpu)
                    ? "the backend local is for CPUs, not for " + devices + ": use nccl"
                    : null;
        }

        /** {@inheritDoc} */
        @Override
        List<Communicator> connect(List<Device> devices, Job job, Duration timeout) {
            return LocalCommunicator.create(devices.size(), timeout);
        }
    }

    /** The {@code nccl} backend: GPUs of one process or of many, which meet through the job. */
    private static final class NcclBackend extends Backend {

        NcclBackend() {
            super("nccl");
        }

        /** {@inheritDoc} */
        @Override
        String obstacle(List<Device> devices, Job job) {
            return NcclCommunicator.whyNot(firstRank(job), devices).orElse(null);
        }

        /** {@inheritDoc} */
        @Override
        List<Communicator> connect(List<Device> devices, Job job, Duration timeout) {
            boolean first = job == null || job.getProcess() == 0;
            byte[] id = first ? NcclCommunicator.newUniqueId() : new byte[0];
            if (job != null) {
                id = job.exchange("the unique id of NCCL", id)[0];
            }
            int size = job == null ? devices.size() : job.getRanks();
            return new ArrayList<>(
                    NcclCommunicator.create(id, size, firstRank(job), devices, timeout));
        }

        private static int firstRank(Job job) {
            return job == null ? 0 : job.getFirstRank();
        }
    }

    /** The {@code tcp} backend: sockets between all ranks, which the job connects. */
    private static final class TcpBackend extends Backend {

        /** How long a broken connection may wait for its reason. */
        private static final Duration REASON_TIME = Duration.ofSeconds(3);

        TcpBackend() {
            super("tcp");
        }

        /** {@inheritDoc} */
        @Override
        String obstacle(List<Device> devices, Job job) {
            return devices.stream().anyMatch(Device::isGpu)
                    ? "the backend tcp is for CPUs, not for " + devices
                    : null;
        }

        /** {@inheritDoc} */
        @Override
        List<Communicator> connect(List<Device> devices, Job job, Duration timeout) {
            if (job != null) {
                return connect(job, timeout);
            }
            // all ranks are here, and the backend is to be tried
            LaunchEnvironment alone = new LaunchEnvironment("none", 0, 1, 0, "127.0.0.1", 0);
            JobOptions options = JobOptions.builder().setRanks(devices.size()).build();
            try (Job ofOneProcess = Job.join(alone, options)) {
                return connect(ofOneProcess, timeout);
            }
        }

        private static List<Communicator> connect(Job job, Duration timeout) {
            SocketChannel[][] mesh = RankSockets.connect(job, "world");
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
        private static CollectiveException explain(Job job, CollectiveException loss) {
            JobFailedException reason = job.awaitFailure(REASON_TIME);
            return reason == null ? loss : new CollectiveException(reason.getMessage(), reason);
        }
    }
}
