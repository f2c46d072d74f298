package io.djltp.launch;

import ai.djl.Device;

import io.djltp.collective.Communicator;
import io.djltp.job.Job;

import java.time.Duration;
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
     * Returns whether the backend is taken when none was asked for.
     *
     * @param devices the devices of this process's ranks
     * @param job the job, or {@code null} if all ranks are in this process
     * @return whether it is, if none is that {@link Connector} would rather take
     */
    abstract boolean isAutomatic(List<Device> devices, Job job);

    /**
     * Connects the ranks of this process with all ranks of the job. All processes call it.
     *
     * @param devices the devices of this process's ranks
     * @param job the job, or {@code null} if all ranks are in this process
     * @param timeout how long a rank waits for the others in an operation
     * @return the communicators of this process's ranks
     */
    abstract List<Communicator> connect(List<Device> devices, Job job, Duration timeout);
}
