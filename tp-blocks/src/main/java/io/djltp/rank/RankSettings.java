package io.djltp.rank;

import ai.djl.Device;

import io.djltp.collective.local.LocalCommunicator;
import io.djltp.job.Job;
import io.djltp.launch.Backend;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** Where the ranks of this process compute, and what they communicate through. */
abstract class RankSettings {

    private final List<Device> devices;
    private final boolean devicesGiven;
    private final int threadsPerRank;
    private final Duration timeout;
    private final Job job;
    private final Backend backend;

    RankSettings(Builder<?> builder, int ranks) {
        job = builder.job;
        int local = builder.localRanks(ranks);
        devicesGiven = builder.devices != null;
        devices =
                devicesGiven
                        ? List.copyOf(builder.devices)
                        : Collections.nCopies(local, Device.cpu());
        threadsPerRank =
                builder.threadsPerRank > 0
                        ? builder.threadsPerRank
                        : Processors.perRank(job, local);
        timeout = builder.timeout;
        backend = builder.backend;
    }

    RankSettings(RankSettings other, List<Device> devices) {
        this.devices = devices;
        devicesGiven = true;
        job = other.job;
        threadsPerRank = other.threadsPerRank;
        timeout = other.timeout;
        backend = other.backend;
    }

    /** Returns whether the devices were named. */
    boolean hasDevices() {
        return devicesGiven;
    }

    /**
     * Returns the number of ranks of this process.
     *
     * @return the number of ranks
     */
    public int getLocalRanks() {
        return devices.size();
    }

    /**
     * Returns the job that this process is part of.
     *
     * @return the job, or {@code null} if all ranks are in this process
     */
    public Job getJob() {
        return job;
    }

    /**
     * Returns what carries out the collective operations.
     *
     * @return the backend; {@link Backend#AUTO} to choose what fits the devices and the job
     */
    public Backend getBackend() {
        return backend;
    }

    /**
     * Returns the device of each rank of this process.
     *
     * @return the devices, in the order of the ranks; the CPU for all where none were given, which
     *     a trainer may change, see {@link ParallelConfig#onDevices}
     */
    public List<Device> getDevices() {
        return devices;
    }

    /**
     * Returns how many threads an operation of one rank may use.
     *
     * @return the number of threads
     */
    public int getThreadsPerRank() {
        return threadsPerRank;
    }

    /**
     * Returns how long a rank waits for the others in a collective operation.
     *
     * @return the time-out
     */
    public Duration getTimeout() {
        return timeout;
    }

    /**
     * The builder of these settings.
     *
     * @param <T> the builder
     */
    abstract static class Builder<T extends Builder<T>> {

        private List<Device> devices;
        private int threadsPerRank;
        private Duration timeout = LocalCommunicator.DEFAULT_TIMEOUT;
        private Job job;
        private Backend backend = Backend.AUTO;

        /** Returns this builder. */
        abstract T self();

        private int localRanks(int ranks) {
            return job == null ? ranks : job.getLocalRanks();
        }

        /**
         * Sets the device of each rank of this process. Default: the GPUs of the training
         * configuration, one for each rank, or the CPU for all if it has none.
         *
         * @param devices one device for each rank; several ranks may share a CPU, but not a GPU
         * @return this builder
         */
        public T optDevices(List<Device> devices) {
            this.devices = new ArrayList<>(devices);
            return self();
        }

        /**
         * Sets how many threads an operation of one rank may use. Default: the processors divided
         * by the ranks of the machine, or by those of the process if its launcher has given it
         * processors of its own. With more than one, operations are faster if the thread that calls
         * the trainer has none beside itself ({@code Autograd.setThreads(1)}): where all together
         * have more threads than there are processors, OpenMP lets them sleep after each operation.
         *
         * @param threadsPerRank the number of threads, 1 or more
         * @return this builder
         */
        public T optThreadsPerRank(int threadsPerRank) {
            if (threadsPerRank < 1) {
                throw new IllegalArgumentException(
                        "A rank needs 1 thread or more, not " + threadsPerRank);
            }
            this.threadsPerRank = threadsPerRank;
            return self();
        }

        /**
         * Sets how long a rank waits for the others in a collective operation before the job ends
         * with an error. Default: five minutes.
         *
         * @param timeout the time-out, more than nothing
         * @return this builder
         */
        public T optTimeout(Duration timeout) {
            if (timeout.isNegative() || timeout.isZero()) {
                throw new IllegalArgumentException(
                        "The time-out must be positive, not "
                                + timeout
                                + ": it is how long a rank waits for the slowest");
            }
            this.timeout = timeout;
            return self();
        }

        /**
         * Sets the job that this process is part of. Default: none, all ranks are in this process.
         *
         * @param job the job, see {@link io.djltp.launch.Launcher}, or {@code null}; stays the
         *     caller's to close, after the trainer
         * @return this builder
         */
        public T optJob(Job job) {
            this.job = job;
            return self();
        }

        /**
         * Sets what carries out the collective operations. Default: what fits the devices and the
         * job.
         *
         * @param backend the backend
         * @return this builder
         */
        public T optBackend(Backend backend) {
            this.backend = backend;
            return self();
        }

        /** Checks that the job and the devices fit the ranks, which is to be told otherwise. */
        void checkRanks(int ranks, String remedy) {
            if (job != null && job.getRanks() != ranks) {
                throw new IllegalArgumentException(
                        "The job has " + job.getRanks() + " ranks, not " + ranks + ": " + remedy);
            }
            if (devices != null && devices.size() != localRanks(ranks)) {
                throw new IllegalArgumentException(
                        devices.size()
                                + " devices for "
                                + localRanks(ranks)
                                + " ranks: give one device for each rank of this process");
            }
        }
    }
}
