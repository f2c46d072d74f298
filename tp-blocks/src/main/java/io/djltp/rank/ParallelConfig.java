package io.djltp.rank;

import ai.djl.Device;

import io.djltp.collective.local.LocalCommunicator;
import io.djltp.job.Job;
import io.djltp.launch.Backend;
import io.djltp.layout.ParallelMode;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/**
 * How many ranks train a model, how they share the work, and on which devices.
 *
 * <pre>{@code
 * ParallelConfig config =
 *         ParallelConfig.builder().setMode(ParallelMode.TENSOR).setRanks(4).build();
 * }</pre>
 */
public final class ParallelConfig {

    private static final int DOUBLING = -1; // drift checks at steps 1, 2, 4, 8, ...

    private final ParallelMode mode;
    private final int ranks;
    private final List<Device> devices;
    private final boolean devicesGiven;
    private final int threadsPerRank;
    private final Duration timeout;
    private final Job job;
    private final Backend backend;
    private final int driftCheckSteps;
    private final boolean randomCheck;

    private ParallelConfig(Builder builder) {
        mode = builder.mode;
        ranks = builder.ranks;
        job = builder.job;
        devices =
                builder.devices == null
                        ? Collections.nCopies(builder.localRanks(), Device.cpu())
                        : List.copyOf(builder.devices);
        devicesGiven = builder.devices != null;
        threadsPerRank =
                builder.threadsPerRank > 0
                        ? builder.threadsPerRank
                        : Processors.perRank(job, builder.localRanks());
        timeout = builder.timeout;
        backend = builder.backend;
        driftCheckSteps = builder.driftCheckSteps;
        randomCheck = builder.randomCheck;
    }

    private ParallelConfig(ParallelConfig other, List<Device> devices) {
        this.devices = devices;
        devicesGiven = true;
        mode = other.mode;
        ranks = other.ranks;
        job = other.job;
        threadsPerRank = other.threadsPerRank;
        timeout = other.timeout;
        backend = other.backend;
        driftCheckSteps = other.driftCheckSteps;
        randomCheck = other.randomCheck;
    }

    /**
     * Returns this configuration on the devices of a {@link ai.djl.training.TrainingConfig}, as the
     * trainer does it: on those GPUs, one for each rank, if {@link Builder#optDevices} has not said
     * otherwise.
     *
     * @param training the devices of the training configuration: by DJL's default all GPUs of the
     *     machine, or the CPU where there are none
     * @return the configuration, with the device of each rank
     * @throws IllegalArgumentException if there are fewer GPUs than ranks that need one
     */
    public ParallelConfig onDevices(Device... training) {
        if (devicesGiven) {
            RankDevices.logDifference(devices, training);
            return this;
        }
        return new ParallelConfig(this, RankDevices.choose(training, job, getLocalRanks()));
    }

    /**
     * Returns how the ranks share the work.
     *
     * @return the mode
     */
    public ParallelMode getMode() {
        return mode;
    }

    /**
     * Returns the number of ranks of all processes.
     *
     * @return the number of ranks
     */
    public int getRanks() {
        return ranks;
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
     * Returns whether the replicas of parameters are compared at all.
     *
     * @return whether they are
     */
    public boolean isDriftChecked() {
        return driftCheckSteps != 0;
    }

    /**
     * Returns whether the replicas of parameters are compared after a step.
     *
     * @param step the number of the step, from 1
     * @return whether they are
     */
    public boolean isDriftCheckDue(long step) {
        return driftCheckSteps == DOUBLING
                ? Long.bitCount(step) == 1
                : driftCheckSteps > 0 && step % driftCheckSteps == 0;
    }

    /**
     * Returns whether random draws are refused where all ranks compute the same.
     *
     * @return whether they are
     */
    public boolean isRandomCheck() {
        return randomCheck;
    }

    /**
     * Returns the device of each rank of this process.
     *
     * @return the devices, in the order of the ranks; the CPU for all where none were given, which
     *     a trainer may change, see {@link #onDevices}
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
     * Creates a builder to build a {@code ParallelConfig}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link ParallelConfig}. */
    public static final class Builder {

        private ParallelMode mode;
        private int ranks;
        private List<Device> devices;
        private int threadsPerRank;
        private Duration timeout = LocalCommunicator.DEFAULT_TIMEOUT;
        private Job job;
        private Backend backend = Backend.AUTO;
        private int driftCheckSteps = DOUBLING;
        private boolean randomCheck = true;

        private Builder() {}

        private int localRanks() {
            return job == null ? ranks : job.getLocalRanks();
        }

        /**
         * Sets how the ranks share the work.
         *
         * @param mode the mode
         * @return this builder
         */
        public Builder setMode(ParallelMode mode) {
            this.mode = mode;
            return this;
        }

        /**
         * Sets the number of ranks of all processes.
         *
         * @param ranks the number of ranks, 1 or more
         * @return this builder
         */
        public Builder setRanks(int ranks) {
            this.ranks = ranks;
            return this;
        }

        /**
         * Sets the device of each rank of this process. Default: the GPUs of the training
         * configuration, one for each rank, or the CPU for all if it has none.
         *
         * @param devices one device for each rank; several ranks may share a CPU, but not a GPU
         * @return this builder
         */
        public Builder optDevices(List<Device> devices) {
            this.devices = new ArrayList<>(devices);
            return this;
        }

        /**
         * Sets how many threads an operation of one rank may use. Default: the processors divided
         * by the ranks of the machine, or by those of the process if its launcher has given it
         * processors of its own.
         *
         * @param threadsPerRank the number of threads, 1 or more
         * @return this builder
         */
        public Builder optThreadsPerRank(int threadsPerRank) {
            if (threadsPerRank < 1) {
                throw new IllegalArgumentException(
                        "A rank needs 1 thread or more, not " + threadsPerRank);
            }
            this.threadsPerRank = threadsPerRank;
            return this;
        }

        /**
         * Sets how long a rank waits for the others in a collective operation before the job ends
         * with an error. Default: five minutes.
         *
         * @param timeout the time-out, more than nothing
         * @return this builder
         */
        public Builder optTimeout(Duration timeout) {
            if (timeout.isNegative() || timeout.isZero()) {
                throw new IllegalArgumentException(
                        "The time-out must be positive, not "
                                + timeout
                                + ": it is how long a rank waits for the slowest");
            }
            this.timeout = timeout;
            return this;
        }

        /**
         * Sets the job that this process is part of. Default: none, all ranks are in this process.
         *
         * @param job the job, see {@link io.djltp.launch.Launcher}, or {@code null}; stays the
         *     caller's to close, after the trainer
         * @return this builder
         */
        public Builder optJob(Job job) {
            this.job = job;
            return this;
        }

        /**
         * Sets what carries out the collective operations. Default: what fits the devices and the
         * job.
         *
         * @param backend the backend
         * @return this builder
         */
        public Builder optBackend(Backend backend) {
            this.backend = backend;
            return this;
        }

        /**
         * Sets when the replicas of parameters are compared on all ranks, by a checksum: if they
         * have drifted apart, the job ends with an error that names the parameter. The batches of
         * the processes are compared too. Default: after steps 1, 2, 4, 8, and so on, before the
         * model is saved, and when the trainer is closed.
         *
         * @param steps to compare every so many steps, before a save and at the end; or 0 for never
         * @return this builder
         */
        public Builder optDriftCheck(int steps) {
            if (steps < 0) {
                throw new IllegalArgumentException(
                        "The replicas are compared every 1 or more steps, or with 0 never; not "
                                + steps);
            }
            driftCheckSteps = steps;
            return this;
        }

        /**
         * Sets whether a network is refused that draws random numbers of libtorch, such as those of
         * DJL's {@code Dropout}, where all ranks compute the same: each would draw others, and the
         * replicas of the parameters would drift apart. Default: true.
         *
         * @param check whether such draws are refused
         * @return this builder
         */
        public Builder optRandomCheck(boolean check) {
            randomCheck = check;
            return this;
        }

        /**
         * Builds the configuration.
         *
         * @return the configuration
         * @throws IllegalArgumentException if the mode or the ranks are missing, or the devices do
         *     not fit the ranks
         */
        public ParallelConfig build() {
            if (mode == null) {
                throw new IllegalArgumentException("You must set the mode: TENSOR, DATA or MIXED");
            }
            if (ranks < 1) {
                throw new IllegalArgumentException(
                        "The number of ranks must be 1 or more, not " + ranks);
            }
            if (job != null && job.getRanks() != ranks) {
                throw new IllegalArgumentException(
                        "The job has "
                                + job.getRanks()
                                + " ranks, not "
                                + ranks
                                + ": set the number that the job was joined with");
            }
            if (devices != null && devices.size() != localRanks()) {
                throw new IllegalArgumentException(
                        devices.size()
                                + " devices for "
                                + localRanks()
                                + " ranks: give one device for each rank of this process");
            }
            return new ParallelConfig(this);
        }
    }
}
