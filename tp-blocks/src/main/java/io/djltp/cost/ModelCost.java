package io.djltp.cost;

import ai.djl.Device;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.util.Preconditions;

import io.djltp.collective.TrafficTable;
import io.djltp.optimizer.OptimizerSettings;
import io.djltp.parameters.ShapesOnly;
import io.djltp.rank.DeviceMesh;

import java.util.List;

/**
 * What a training of a model costs on a mesh, before anything of it is allocated: what each rank
 * holds of each parameter, and what it communicates in a step.
 *
 * <pre>{@code
 * ModelCost cost =
 *         ModelCost.builder()
 *                 .setBlock(network)
 *                 .setMesh(DeviceMesh.parse("2x4"))
 *                 .setInputs(new Shape(64, 512))
 *                 .setLoss(new VocabParallelCrossEntropyLoss())
 *                 .setOptimizer(Optimizer.adam().build())
 *                 .build();
 * long bytes = cost.getRank(0).getTotal();
 * TrafficTable step = cost.getTraffic(0);
 * }</pre>
 *
 * <p>The bytes of weights, gradients and optimizer state are those that a {@link
 * io.djltp.training.ParallelTrainer} holds, and the traffic is that of a step after the first, as a
 * {@link io.djltp.rank.CommunicationCounter} counts it: forward and backward pass on a batch, and
 * the update; no evaluators, no checks of replicas. Activations and the working memory of layers
 * are not counted. The children of blocks that are not DJL's and not of this library are taken to
 * be used once, in the order in which they were added.
 */
public final class ModelCost {

    private final DeviceMesh mesh;
    private final StepForecast step;
    private final List<LayerCost> layers;

    private ModelCost(Builder builder) {
        mesh = builder.mesh;
        step = new StepForecast(builder);
        // the shapes are there while this runs only
        layers = step.read();
    }

    /**
     * Returns the layers with parameters, in the order of the block tree.
     *
     * @return the layers
     */
    public List<LayerCost> getLayers() {
        return layers;
    }

    /**
     * Returns the parameters, in the order of the block tree.
     *
     * @return the parameters
     */
    public List<ParameterCost> getParameters() {
        return step.getParameters();
    }

    /**
     * Returns how the ranks are arranged.
     *
     * @return the mesh
     */
    public DeviceMesh getMesh() {
        return mesh;
    }

    /**
     * Returns the place of a rank among those over which layers are cut.
     *
     * @param rank the rank
     * @return the place, from 0
     */
    public int getTensorRank(int rank) {
        return mesh.isCut(DeviceMesh.TENSOR) ? mesh.getCoordinate(rank, DeviceMesh.TENSOR) : 0;
    }

    /**
     * Returns what a parameter takes on a rank.
     *
     * @param parameter the parameter
     * @param rank the rank
     * @return the bytes
     */
    public RankCost getRank(ParameterCost parameter, int rank) {
        return step.cost(parameter, getTensorRank(rank));
    }

    /**
     * Returns what all parameters take on a rank.
     *
     * @param rank the rank
     * @return the bytes
     */
    public RankCost getRank(int rank) {
        return getParameters().stream()
                .map(parameter -> getRank(parameter, rank))
                .reduce(new RankCost(0, 0, 0), RankCost::plus);
    }

    /**
     * Returns what a rank communicates in a step.
     *
     * @param rank the rank
     * @return the operations and bytes by block, or gradient, and direction
     */
    public TrafficTable getTraffic(int rank) {
        return step.getTables().get(rank);
    }

    /**
     * Creates a builder to build a {@code ModelCost}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link ModelCost}. */
    public static final class Builder {

        Block block;
        DeviceMesh mesh;
        Shape[] inputs = {};
        Loss loss;
        OptimizerSettings optimizer;
        DataType dataType = DataType.FLOAT32;
        DataType idType = DataType.INT64;
        boolean training = true;
        Device device = Device.cpu();

        private Builder() {}

        /**
         * Sets the network. What it has no values of stays uninitialized.
         *
         * @param block the network
         * @return this builder
         */
        public Builder setBlock(Block block) {
            this.block = block;
            return this;
        }

        /**
         * Sets the ranks.
         *
         * @param mesh the mesh
         * @return this builder
         */
        public Builder setMesh(DeviceMesh mesh) {
            this.mesh = mesh;
            return this;
        }

        /**
         * Sets the shapes of the inputs of the whole batch, whose axis 0 are the rows.
         *
         * @param inputs the shapes
         * @return this builder
         */
        public Builder setInputs(Shape... inputs) {
            this.inputs = inputs.clone();
            return this;
        }

        /**
         * Sets the loss.
         *
         * @param loss the loss
         * @return this builder
         */
        public Builder setLoss(Loss loss) {
            this.loss = loss;
            return this;
        }

        /**
         * Sets the optimizer.
         *
         * @param optimizer the optimizer
         * @return this builder
         */
        public Builder setOptimizer(Optimizer optimizer) {
            this.optimizer = OptimizerSettings.of(optimizer);
            return this;
        }

        /**
         * Sets where the ranks compute, of which it depends how many gradients travel together.
         * Default: the CPU.
         *
         * @param device one of the devices
         * @return this builder
         */
        public Builder optDevice(Device device) {
            this.device = device;
            return this;
        }

        /**
         * Sets whether the network is trained. If not, there is a forward pass only, as that of a
         * {@link io.djltp.training.ParallelPredictor}: no gradient, no state, and neither loss nor
         * optimizer have to be set. Default: true.
         *
         * @param training whether it is trained
         * @return this builder
         */
        public Builder optTraining(boolean training) {
            this.training = training;
            return this;
        }

        /**
         * Sets the type of ids that are looked up in an embedding: in MIXED mode ranks gather them.
         * Default: int64.
         *
         * @param type the type
         * @return this builder
         */
        public Builder optIdType(DataType type) {
            idType = type;
            return this;
        }

        /**
         * Computes the costs.
         *
         * @return the costs
         * @throws IllegalArgumentException if something is missing, a parameter cannot be cut over
         *     the ranks, or the batch has fewer rows than there are ranks to share them
         */
        public ModelCost build() {
            Preconditions.checkArgument(
                    block != null && mesh != null && inputs.length > 0,
                    "You must set block, mesh and inputs");
            Preconditions.checkArgument(
                    !training || loss != null && optimizer != null,
                    "You must set loss and optimizer, or optTraining(false)");
            int sharing = mesh.isCut(DeviceMesh.DATA) ? mesh.getSize(DeviceMesh.DATA) : 1;
            Preconditions.checkArgument(
                    inputs[0].dimension() > 0 && inputs[0].get(0) >= sharing,
                    "A batch of "
                            + inputs[0]
                            + " cannot be shared by "
                            + sharing
                            + " ranks: each needs a row or more");
            ModelCost[] cost = new ModelCost[1];
            ShapesOnly.read(block, dataType, () -> cost[0] = new ModelCost(this), row());
            return cost[0];
        }

        /** Returns the inputs of a batch of one row. */
        Shape[] row() {
            Shape[] row = new Shape[inputs.length];
            for (int i = 0; i < row.length; i++) {
                boolean rows = inputs[i].dimension() > 0 && inputs[i].get(0) == inputs[0].get(0);
                row[i] = rows ? new Shape(1).addAll(inputs[i].slice(1)) : inputs[i];
            }
            return row;
        }
    }
}
