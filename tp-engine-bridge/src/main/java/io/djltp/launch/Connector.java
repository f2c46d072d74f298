package io.djltp.launch;

import ai.djl.Device;

import io.djltp.collective.AbstractCommunicator;
import io.djltp.collective.Communicator;
import io.djltp.job.Job;
import io.djltp.job.JobFailedException;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.StringJoiner;
import java.util.concurrent.CopyOnWriteArrayList;

/** Makes the communicators of a process's ranks with the backend that fits. */
public final class Connector {

    private static final Logger logger = LoggerFactory.getLogger(Connector.class);

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
     * @throws IllegalArgumentException if the system property names none
     */
    public static Backend choose(Backend wanted, List<Device> devices, Job job) {
        Backend named = wanted == Backend.AUTO ? byProperty() : wanted;
        if (named != Backend.AUTO) {
            return named;
        }
        boolean alone = devices.size() == 1 && (job == null || job.getRanks() == 1);
        if (!alone && devices.stream().anyMatch(Device::isGpu)) {
            return Backend.NCCL;
        }
        return job == null || job.getProcesses() == 1 ? Backend.LOCAL : Backend.TCP;
    }

    private static Backend byProperty() {
        try {
            return Backend.valueOf(System.getProperty(PROPERTY, Backend.AUTO.getName()));
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(
                    "The system property " + PROPERTY + ": " + e.getMessage(), e);
        }
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
        String obstacle = backend.obstacle(devices, job);
        if (job == null) {
            if (obstacle != null) {
                throw new IllegalArgumentException(obstacle);
            }
        } else {
            agree(backend, timeout, job);
            job.check("The backend " + backend, obstacle);
        }
        logger.debug("Collective operations on {} through {}", devices, backend);
        List<Communicator> group = backend.connect(devices, job, timeout);
        if (job != null) {
            watch(job, new CopyOnWriteArrayList<>(group));
        }
        return group;
    }

    /** Lets a job abort communicators, and say what they do, as long as they are open. */
    private static void watch(Job job, List<Communicator> open) {
        Runnable takeBack =
                job.onFailure(failure -> open.forEach(communicator -> communicator.abort(failure)));
        job.setStatus(() -> status(open));
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

    private static void agree(Backend backend, Duration timeout, Job job) {
        String mine = backend + " with a time-out of " + timeout.toMillis() + " ms";
        byte[][] all = job.exchange("backend", mine.getBytes(StandardCharsets.UTF_8));
        for (int i = 0; i < all.length; i++) {
            String other = new String(all[i], StandardCharsets.UTF_8);
            String first = new String(all[0], StandardCharsets.UTF_8);
            if (!other.equals(first)) {
                throw new IllegalArgumentException(
                        ("The processes want different backends: process 0 %s, process %s"
                                        + " %s: start all with the same settings")
                                .formatted(first, i, other));
            }
        }
    }

    /**
     * Says why a backend cannot be used by this process. Never throws.
     *
     * @param backend the backend
     * @param devices the devices of this process's ranks
     * @param job the job, or {@code null} if all ranks are in this process
     * @return the reason, or nothing if it can be used
     */
    public static Optional<String> whyNot(Backend backend, List<Device> devices, Job job) {
        return Optional.ofNullable(backend.obstacle(devices, job));
    }

    private static String status(List<Communicator> group) {
        StringJoiner text = new StringJoiner("; ");
        for (Communicator communicator : group) {
            text.add(
                    "rank "
                            + communicator.getRank()
                            + " "
                            + AbstractCommunicator.of(communicator).getRecorder().latest());
        }
        return text.toString();
    }
}
