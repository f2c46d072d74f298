package io.djltp.rank;

import ai.djl.Device;

import io.djltp.layout.ParallelMode;

import java.util.List;

/**
 * How many ranks train a model, how they share the work, and on which devices.
 *
 * <pre>{@code
 * ParallelConfig config =
 *         ParallelConfig.builder().setMode(ParallelMode.TENSOR).setRanks(4).build();
 * ParallelConfig mesh =
 *         ParallelConfig.builder().setMesh(DeviceMesh.of("data", 2, "tensor", 2)).build();
 * }</pre>
 */
public final class ParallelConfig extends RankSettings {

    private static final int DOUBLING = -1; // drift checks at steps 1, 2, 4, 8, ...

    private final ParallelMode mode; // null: a mesh was given
    private final DeviceMesh mesh;
    private final int driftCheckSteps;
    private final boolean batchCheck;
    private final boolean randomCheck;
    private final float gradientClipNorm; // 0: gradients are left as they are
    private final LossScaling lossScaling; // or null: the loss is not scaled

    private ParallelConfig(Builder builder, DeviceMesh mesh) {
        super(builder, mesh.getRanks());
        mode = builder.mode;
        this.mesh = mesh;
        driftCheckSteps = builder.driftCheckSteps;
        batchCheck = builder.batchCheck;
        randomCheck = builder.randomCheck;
        gradientClipNorm = builder.gradientClipNorm;
        lossScaling = builder.lossScaling;
    }

    private ParallelConfig(ParallelConfig other, List<Device> devices) {
        super(other, devices);
        mode = other.mode;
        mesh = other.mesh;
        driftCheckSteps = other.driftCheckSteps;
        batchCheck = other.batchCheck;
        randomCheck = other.randomCheck;
        gradientClipNorm = other.gradientClipNorm;
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
        if (hasDevices()) {
            RankDevices.logDifference(getDevices(), training);
            return this;
        }
        return new ParallelConfig(this, RankDevices.choose(training, getJob(), getLocalRanks()));
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
    public ParallelMode getMode() {
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

    /** {@return whether random draws are refused where all ranks compute the same} */
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
     * Returns how the loss is scaled.
     *
     * @return the settings, or {@code null} if it is not
     */
    public LossScaling getLossScaling() {
        return lossScaling;
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
    public static final class Builder extends RankSettings.Builder<Builder> {

        private ParallelMode mode;
        private DeviceMesh mesh;
        private Integer ranks;
        private int driftCheckSteps = DOUBLING;
        private boolean batchCheck = true;
        private boolean randomCheck = true;
        private float gradientClipNorm;
        private LossScaling lossScaling;

        private Builder() {}

        /** {@inheritDoc} */
        @Override
        Builder self() {
            return this;
        }

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
         * Scales what is differentiated by a factor that follows the gradients, for layers in
         * float16. A step whose gradients are not all finite changes no weight, no state of the
         * optimizer and no number of an update. {@link #optGradientClipNorm} is of the gradients
         * without the scale. Default: the loss is not scaled.
         *
         * @param scaling how it follows them
         * @return this builder
         */
        public Builder optLossScaling(LossScaling scaling) {
            lossScaling = scaling;
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
         * @throws IllegalArgumentException if there is no mode and no mesh, or both, or the ranks,
         *     the job or the devices do not fit
         */
        public ParallelConfig build() {
            DeviceMesh built = new MeshChoice(mode, mesh, ranks).get();
            checkRanks(
                    built.getRanks(),
                    mesh == null
                            ? "set the number that the job was joined with"
                            : "choose sizes of the mesh " + mesh + " with that product");
            return new ParallelConfig(this, built);
        }
    }
}
