package io.djltp.mesh;

import ai.djl.Device;

import io.djltp.collective.LocalCommunicator;

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

    private final ParallelMode mode;
    private final int ranks;
    private final List<Device> devices;
    private final int threadsPerRank;
    private final Duration timeout;

    private ParallelConfig(Builder builder) {
        mode = builder.mode;
        ranks = builder.ranks;
        devices =
                builder.devices == null
                        ? Collections.nCopies(ranks, Device.cpu())
                        : List.copyOf(builder.devices);
        threadsPerRank =
                builder.threadsPerRank > 0
                        ? builder.threadsPerRank
                        : Math.max(1, Runtime.getRuntime().availableProcessors() / ranks);
        timeout = builder.timeout;
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
     * Returns the number of ranks.
     *
     * @return the number of ranks
     */
    public int getRanks() {
        return ranks;
    }

    /**
     * Returns the device of each rank.
     *
     * @return the devices, in the order of the ranks
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

        private Builder() {}

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
         * Sets the number of ranks.
         *
         * @param ranks the number of ranks, 1 or more
         * @return this builder
         */
        public Builder setRanks(int ranks) {
            this.ranks = ranks;
            return this;
        }

        /**
         * Sets the device of each rank. Default: the CPU for all.
         *
         * @param devices one device for each rank; several ranks may share one
         * @return this builder
         */
        public Builder optDevices(List<Device> devices) {
            this.devices = new ArrayList<>(devices);
            return this;
        }

        /**
         * Sets how many threads an operation of one rank may use. Default: the processors divided
         * by the ranks.
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
            if (devices != null && devices.size() != ranks) {
                throw new IllegalArgumentException(
                        devices.size()
                                + " devices for "
                                + ranks
                                + " ranks: give one device for each rank");
            }
            if (ranks > 1 && devices != null && devices.stream().anyMatch(Device::isGpu)) {
                throw new IllegalArgumentException(
                        "Several ranks on "
                                + devices
                                + " need a backend for GPUs, and this version has only the local"
                                + " one for CPUs: use Device.cpu() or 1 rank");
            }
            return new ParallelConfig(this);
        }
    }
}
