package io.djltp.rank;

import ai.djl.Device;

import io.djltp.internal.Errors;
import io.djltp.internal.collective.local.LocalCommunicator;
import io.djltp.job.Job;
import io.djltp.launch.Backend;

import org.jspecify.annotations.Nullable;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Objects;

/**
 * How many ranks train a model, how they share the work, and on which devices.
 *
 * <pre>{@code
 * ParallelConfig config = ParallelConfig.tensor(4);
 * ParallelConfig mesh = ParallelConfig.mesh(2, 2); // data, tensor
 * ParallelConfig more =
 *         ParallelConfig.builder()
 *                 .setMode(ParallelMode.TENSOR)
 *                 .setRanks(4)
 *                 .optGradientClipNorm(1)
 *                 .build();
 * }</pre>
 */
public final class ParallelConfig {

    private static final int DOUBLING = -1; // drift checks at steps 1, 2, 4, 8, ...

    private final @Nullable ParallelMode mode; // null: a mesh was given
    private final DeviceMesh mesh;
    private final List<Device> devices;
    private final boolean devicesGiven;
    private final int threadsPerRank;
    private final Duration timeout;
    private final @Nullable Job job;
    private final Backend backend;
    private final int driftCheckSteps;
    private final boolean batchCheck;
    private final boolean randomCheck;
    private final float gradientClipNorm; // 0: gradients are left as they are
    private final boolean optimizerSharded;
    private final @Nullable LossScaling lossScaling; // or null: the loss is not scaled

    private ParallelConfig(Builder builder, DeviceMesh mesh) {
        mode = builder.mode;
        this.mesh = mesh;
        job = builder.job;
        int local = builder.localRanks(mesh.getRanks());
        devicesGiven = builder.devices != null;
        devices =
                builder.devices == null
                        ? Collections.nCopies(local, Device.cpu())
                        : List.copyOf(builder.devices);
        threadsPerRank =
                builder.threadsPerRank > 0
                        ? builder.threadsPerRank
                        : Processors.perRank(job, local);
        timeout = builder.timeout;
        backend = builder.backend;
        driftCheckSteps = builder.driftCheckSteps;
        batchCheck = builder.batchCheck;
        randomCheck = builder.randomCheck;
        gradientClipNorm = builder.gradientClipNorm;
        optimizerSharded = builder.optimizerSharded;
        lossScaling = builder.lossScaling;
    }

    private ParallelConfig(ParallelConfig other, List<Device> devices) {
        this.devices = devices;
        devicesGiven = true;
        mode = other.mode;
        mesh = other.mesh;
        job = other.job;
        threadsPerRank = other.threadsPerRank;
        timeout = other.timeout;
        backend = other.backend;
        driftCheckSteps = other.driftCheckSteps;
        batchCheck = other.batchCheck;
        randomCheck = other.randomCheck;
        gradientClipNorm = other.gradientClipNorm;
        optimizerSharded = other.optimizerSharded;
        lossScaling = other.lossScaling;
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
        return new ParallelConfig(this, RankDevices.choose(training, job, devices.size()));
    }

    /**
     * Returns how the ranks are arranged.
     *
     * @return the mesh that was set, or that of the mode
     */
    public DeviceMesh getMesh() {
        return mesh;
    }

    /**
     * Returns the mode that was set.
     *
     * @return the mode, or {@code null} if a mesh was set
     */
    public @Nullable ParallelMode getMode() {
        return mode;
    }

    /**
     * Returns how the ranks share the work, for messages.
     *
     * @return the mode, or the mesh
     */
    public String describe() {
        return mode == null ? "the mesh " + mesh : mode + " mode";
    }

    /**
     * Returns the number of ranks of all processes.
     *
     * @return the number of ranks
     */
    public int getRanks() {
        return mesh.getRanks();
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
    public @Nullable Job getJob() {
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

    /** {@return when the replicas are compared, for messages} */
    public String describeDriftCheck() {
        return driftCheckSteps == DOUBLING
                ? "after steps 1, 2, 4, 8, ..."
                : driftCheckSteps == 0 ? "never" : "every " + driftCheckSteps + " steps";
    }

    /**
     * {@return whether the batches of the processes are compared before a step}
     *
     * @param step the number of the step, from 1
     */
    public boolean isBatchCheckDue(long step) {
        return batchCheck && isDriftCheckDue(step);
    }

    /** {@return whether the batches are compared with the replicas} */
    public boolean isBatchCheck() {
        return batchCheck;
    }

    /** {@return whether random draws throw where all ranks compute the same} */
    public boolean isRandomCheck() {
        return randomCheck;
    }

    /**
     * Returns the largest norm of all gradients.
     *
     * @return the norm, or 0 if gradients are left as they are
     */
    public float getGradientClipNorm() {
        return gradientClipNorm;
    }

    /**
     * Returns whether ranks that hold the same parameter share out the state of the optimizer.
     *
     * @return whether each has a part of it
     */
    public boolean isOptimizerSharded() {
        return optimizerSharded;
    }

    /**
     * Returns how the loss is scaled.
     *
     * @return the settings, or {@code null} if it is not
     */
    public @Nullable LossScaling getLossScaling() {
        return lossScaling;
    }

    /**
     * Creates the configuration of {@link ParallelMode#TENSOR} mode, with all other settings at
     * their defaults.
     *
     * @param ranks the number of ranks, 1 or more, all in this process
     * @return the configuration
     */
    public static ParallelConfig tensor(int ranks) {
        return builder().setMode(ParallelMode.TENSOR).setRanks(ranks).build();
    }

    /**
     * Creates the configuration of {@link ParallelMode#DATA} mode, with all other settings at their
     * defaults.
     *
     * @param ranks the number of ranks, 1 or more, all in this process
     * @return the configuration
     */
    public static ParallelConfig data(int ranks) {
        return builder().setMode(ParallelMode.DATA).setRanks(ranks).build();
    }

    /**
     * Creates the configuration of {@link ParallelMode#MIXED} mode, with all other settings at
     * their defaults.
     *
     * @param ranks the number of ranks, 1 or more, all in this process
     * @return the configuration
     */
    public static ParallelConfig mixed(int ranks) {
        return builder().setMode(ParallelMode.MIXED).setRanks(ranks).build();
    }

    /**
     * Creates the configuration of a mesh, with all other settings at their defaults.
     *
     * @param data the number of ranks over which the batch is cut, 1 or more
     * @param tensor the number of ranks over which tensor-parallel layers are cut, 1 or more
     * @return the configuration of {@code data * tensor} ranks, all in this process
     */
    public static ParallelConfig mesh(int data, int tensor) {
        return builder()
                .setMesh(DeviceMesh.of(DeviceMesh.DATA, data, DeviceMesh.TENSOR, tensor))
                .build();
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

        private @Nullable ParallelMode mode;
        private @Nullable DeviceMesh mesh;
        private @Nullable Integer ranks;
        private @Nullable List<Device> devices;
        private int threadsPerRank;
        private Duration timeout = LocalCommunicator.DEFAULT_TIMEOUT;
        private @Nullable Job job;
        private Backend backend = Backend.AUTO;
        private int driftCheckSteps = DOUBLING;
        private boolean batchCheck = true;
        private boolean randomCheck = true;
        private float gradientClipNorm;
        private boolean optimizerSharded;
        private @Nullable LossScaling lossScaling;

        private Builder() {}

        /**
         * Sets how the ranks share the work, by a mode. It needs {@link #setRanks}.
         *
         * @param mode the mode
         * @return this builder
         */
        public Builder setMode(ParallelMode mode) {
            this.mode = mode;
            return this;
        }

        /**
         * Sets how the ranks share the work, by a mesh: the batch is cut over its axis data, and
         * tensor-parallel layers are cut over its axis tensor. Takes the place of a mode.
         *
         * @param mesh the mesh
         * @return this builder
         */
        public Builder setMesh(DeviceMesh mesh) {
            this.mesh = mesh;
            return this;
        }

        /**
         * Sets the number of ranks of all processes. A mesh has its own.
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
         * processors of its own. With more than one, operations are faster if the thread that calls
         * the trainer has one ({@code -Dai.djl.pytorch.num_threads=1}): if all together have more
         * threads than there are processors, OpenMP lets them sleep after each operation.
         *
         * @param threadsPerRank the number of threads, 1 or more
         * @return this builder
         */
        public Builder optThreadsPerRank(int threadsPerRank) {
            Errors.check(
                    threadsPerRank >= 1, "A rank needs 1 thread or more, not %s", threadsPerRank);
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
            Errors.check(
                    !timeout.isNegative() && !timeout.isZero(),
                    "The time-out must be positive, not %s: it is how long a rank waits for the"
                            + " slowest",
                    timeout);
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
        public Builder optJob(@Nullable Job job) {
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
            this.backend = Objects.requireNonNull(backend, "backend");
            return this;
        }

        /**
         * Limits the norm of all gradients together, over all ranks and each element once: if it is
         * larger, all gradients are scaled down alike before the update, as {@code
         * torch.nn.utils.clip_grad_norm_} does it. Not that of each element, which is DJL's {@code
         * Optimizer.optClipGrad}, and comes after it. Default: no limit.
         *
         * @param norm the largest norm; with infinity it is computed, and nothing is scaled
         * @return this builder
         */
        public Builder optGradientClipNorm(float norm) {
            if (!(norm > 0)) {
                throw new IllegalArgumentException(
                        "The largest norm of the gradients must be more than 0, not " + norm);
            }
            gradientClipNorm = norm;
            return this;
        }

        /**
         * Sets whether ranks that sum the gradient of a parameter share out the state of the
         * optimizer: each keeps that of a part of the elements, updates them, and gets the other
         * values from the other ranks (ZeRO stage 1, Rajbhandari et al., 2020, <a
         * href="https://arxiv.org/abs/1910.02054">arXiv:1910.02054</a>). The weights are the same,
         * bit for bit, and as much is sent. Adam then keeps \(8/d\) instead of 8 bytes for each
         * parameter of float32 that \(d\) ranks hold. Checkpoints do not depend on it. The first
         * step after a restore, and after parameters were frozen or thawed, moves state of small
         * parameters among the ranks. Rules without state of elements, such as SGD without momentum
         * or {@link io.djltp.optimizer.RowwiseAdagrad}, and parameters that a block updates itself,
         * such as those of a fused head, are updated as without it. Default: false.
         *
         * @param sharded whether they do
         * @return this builder
         */
        public Builder optShardOptimizer(boolean sharded) {
            optimizerSharded = sharded;
            return this;
        }

        /**
         * Scales what is differentiated by a factor that follows the gradients, for layers in
         * float16. A step whose gradients are not all finite changes no weight, no state of the
         * optimizer and no number of an update. {@link #optGradientClipNorm} is of the gradients
         * without the scale. Default: the loss is not scaled.
         *
         * @param scaling how it follows them
         * @return this builder
         */
        public Builder optLossScaling(LossScaling scaling) {
            lossScaling = Objects.requireNonNull(scaling, "scaling");
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
            Errors.check(
                    steps >= 0,
                    "The replicas are compared every 1 or more steps, or with 0 never; not %s",
                    steps);
            driftCheckSteps = steps;
            return this;
        }

        /**
         * Sets whether the batches of the processes are compared with the replicas. Default: true.
         *
         * @param check false where, in MIXED mode, a process has the rows of its own ranks and any
         *     in the places of others; the labels are those of all rows
         * @return this builder
         */
        public Builder optBatchCheck(boolean check) {
            batchCheck = check;
            return this;
        }

        /**
         * Sets whether a network is refused that draws random numbers of libtorch, such as those of
         * DJL's {@code Dropout}, where several ranks compute the same: each would draw others, and
         * the replicas of the parameters would drift apart. Default: true.
         *
         * @param check whether such draws throw
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
         * @throws IllegalArgumentException if there is no mode and no mesh, or both, or the ranks,
         *     the job or the devices do not fit
         */
        public ParallelConfig build() {
            DeviceMesh built = mesh == null ? meshOfMode() : checked(mesh);
            checkRanks(
                    built.getRanks(),
                    mesh == null
                            ? "set the number that the job was joined with"
                            : "choose sizes of the mesh " + mesh + " with that product");
            return new ParallelConfig(this, built);
        }

        private DeviceMesh meshOfMode() {
            if (mode == null) {
                throw new IllegalArgumentException(
                        "You must set the mode: TENSOR, DATA or MIXED; or a mesh");
            }
            int count = ranks == null ? 0 : ranks;
            Errors.check(count >= 1, "The number of ranks must be 1 or more, not %s", count);
            return DeviceMesh.of(mode, count);
        }

        private DeviceMesh checked(DeviceMesh mesh) {
            if (mode != null) {
                throw new IllegalArgumentException(
                        ("The mesh %s and the mode %s were set: set one of the two, setMesh or"
                                        + " setMode")
                                .formatted(mesh, mode));
            }
            for (String axis : mesh.getNames()) {
                if (!DeviceMesh.AXES.contains(axis)) {
                    throw new IllegalArgumentException(
                            ("The mesh %s has the axis '%s', over which nothing is cut: the axes"
                                            + " are %s")
                                    .formatted(mesh, axis, String.join(" and ", DeviceMesh.AXES)));
                }
            }
            if (ranks != null && ranks != mesh.getRanks()) {
                throw new IllegalArgumentException(
                        ("The mesh %s has %d ranks, not %d: choose sizes whose product is %d, or"
                                        + " leave setRanks out")
                                .formatted(mesh, mesh.getRanks(), ranks, ranks));
            }
            return mesh;
        }

        /** Checks that the job and the devices fit the ranks, which is to be told otherwise. */
        private void checkRanks(int ranks, String remedy) {
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

        private int localRanks(int ranks) {
            return job == null ? ranks : job.getLocalRanks();
        }
    }
}
